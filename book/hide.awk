# A noweb filter for the volume: leaves out the chunks that are not printed, and
# says of each that is where it stands in the tangled files (-v outline=FILE,
# as book/outline writes it).
#
#   % hidden          on the line before a chunk: tangled, not printed
#   % shown           before a file's own chunk: printed, though it is a file's
#   % folded: TITLE   from here to "% unfolded" nothing is printed, neither
#                     chunks nor prose
#
# What it counted goes to -v count=FILE: of each file the lines that are printed;
# printed chunks of more than 25 lines, unless "% long: WHY" is on the line
# before them; and prose of fewer than ten words before a chunk.
#
# A file's own chunk is a list of what stands in it and is not printed. Where a
# chunk that is nowhere printed is used, its name and its place are; where one
# goes on out of sight, the margin says where.
BEGIN {
    printf "" >count
    while ((getline entry < outline) > 0) {
        split(entry, part, " ")
        file[part[1]] = part[2]
        from[part[1]] = part[3]
        to[part[1]] = part[4]
    }
}
{ line[NR] = $0 }
/^@text % unfolded$/ { fold = 0 }
/^@text % folded: ./ { fold = 1 }
/^@text / {
    text = substr($0, 7)
    gsub(/\\sub\{[^}]*\}/, "", text) # prints nothing
    if (text !~ /^%/ && !fold) words += split(text, unused, " ")
}
/^@begin docs/ { text = ""; words = 0 }
/^@begin code/ {
    number = $3
    mark = text
    said = words
    text = ""
    lines = -2
}
/^@nl/ { lines++ }
/^@end code/ && !hidden[number] && lines > 25 && mark !~ /^% long: ./ {
    print "long", lines, name >count
}
/^@defn / {
    name = substr($0, 7)
    own = name ~ /^\[\[.*\/.*\]\]$/
    hidden[number] = fold || (own ? mark != "% shown" : mark == "% hidden")
    if (!hidden[number] && said > 0 && said < 10)
        print "short", said, name >count
    if (!hidden[number]) printed[name] = number
    else if (name in printed && number in file) {
        if (!(printed[name] in rest)) rest[printed[name]] = from[number]
        until[printed[name]] = to[number]
    } else if (!(name in place)) place[name] = file[number] ":" from[number]
}
END {
    if (fold) {
        print "book: folded and never unfolded, in " outline >"/dev/stderr"
        print "@fatal hide folded and never unfolded"
        exit
    }
    for (i = 1; i <= NR; i++) put(line[i])
    if (ended != "") print ended
    for (number in file) shown[file[number]] += 0 # none, perhaps
    for (name in shown) if (name != "") print "file", name, shown[name] >count
}

function put(text) {
    if (text ~ /^@text % folded: ./) fold = 1
    if (fold && !code && text ~ /^@(text|nl|quote|endquote|use)/) {
        if (text == "@text % unfolded") fold = 0
        return
    }
    if (text ~ /^@begin code/) {
        number = substr(text, 13)
        skip = hidden[number]
    }
    if (!skip) {
        if (text ~ /^@defn /) shown[file[number]]-- # a chunk's name is a line
        if (code && text ~ /^@nl/) shown[file[number]]++
        if (text ~ /^@use / && !(substr(text, 6) in printed))
            print "@literal \\nwhidden{" tex(substr(text, 6)) "}{" place[substr(text, 6)] "}"
        else if (text ~ /^@defn /)
            print text "\n@literal \\nw" (file[number] ~ /\.h$/ ? "contract" : "place") "{" file[number] "}{" from[number] "}{" \
                (number in rest ? "goes on in " rest[number] "\\,\\textendash\\," until[number] : "") "}"
        else if (text ~ /^@end docs/)
            ended = text
        else if (text ~ /^@begin docs/ && ended != "")
            ended = "" # no code between: prose goes on, and paragraphs are set as such
        else if (text !~ /^@text % (hidden|shown|long: .*)$/) {
            if (ended != "") print ended
            ended = ""
            print text
        }
    }
    code = text ~ /^@defn / || code && text !~ /^@end code/
    if (text ~ /^@end code/) skip = 0
}

# A chunk's name as TeX: what stands in [[...]] is code.
function tex(name,    out, code) {
    out = ""
    while (match(name, /\[\[[^]]*\]\]/)) {
        code = substr(name, RSTART + 2, RLENGTH - 4)
        gsub(/_/, "\\_", code)
        gsub(/[{}]/, "\\\\&", code)
        out = out substr(name, 1, RSTART - 1) "\\code{}" code "\\edoc{}"
        name = substr(name, RSTART + RLENGTH)
    }
    return out name
}
