# A noweb filter for weaving C. It colours comments and keywords, and nothing
# else: it wraps pieces of text in TeX groups and leaves every character, and so
# every link that later stages make, as it was. A group never spans a line.
# It also drops blank lines at a chunk's ends (they are for the tangled file; the
# prose gets them instead, so that line numbers stay) and says before each
# chunk how many lines it has, so that TeX can keep short ones whole.
BEGIN {
    n = split("auto bool break case char const continue default do double " \
              "else enum extern false float for goto if inline int int32_t " \
              "int64_t int8_t int16_t long register restrict return short " \
              "signed sizeof size_t static struct switch true typedef " \
              "uint8_t uint16_t uint32_t uint64_t union unsigned void " \
              "volatile while NULL", words, " ")
    for (i = 1; i <= n; i++) keyword[words[i]] = 1
}
/^@end docs/ { held = $0; next }
/^@begin code/ { code = 1; comment = lines = blanks = lead = started = last = n = 0 }
code && /^@text / { if ($0 != "@text ") { keep_blanks(); colour(substr($0, 7)) } next }
code && /^@nl/ { blanks++; next }
code && /^@end code/ {
    if (held != "") print "@literal \\nwlines{" lines + 1 "}\n" held
    held = ""
    for (i = n; i > 0 && last < 3; i--) last += out[i] ~ /^@nl/
    out[i + 1] = out[i + 1] "\n@literal \\nwend{}"
    for (i = 1; i <= n; i++) print out[i]
    print "@nl\n" $0
    code = 0
    owed += lead + blanks - 1
    next
}
code && /^@index/ { out[++n] = $0; next }
code { keep_blanks(); out[++n] = $0; next }
{ if (held != "") print held; held = ""; print }
/^@begin docs/ { for (; owed > 0; owed--) print "@nl" }
END { if (held != "") print held }

# The first newline ends the chunk's name; blank lines after it go as well.
function keep_blanks() {
    if (blanks > 0 && !started) {
        lead = blanks - 1
        blanks = started = 1
    }
    lines += blanks
    for (; blanks > 0; blanks--)
        out[++n] = "@nl" (blanks > 1 ? "\n@literal \\nwblank " : "")
}

function wrap(macro, text) {
    if (text == "") return
    out[++n] = "@literal " macro "{"
    out[++n] = "@text " text
    out[++n] = "@literal }"
}

function plain(text) {
    if (text != "") out[++n] = "@text " text
}

function colour(text,    rest) {
    rest = ""
    while (text != "") {
        if (comment) {
            if (match(text, /\*\//)) {
                wrap("\\nwcomment", substr(text, 1, RSTART + 1))
                text = substr(text, RSTART + 2)
                comment = 0
            } else {
                wrap("\\nwcomment", text)
                text = ""
            }
        } else if (text ~ /^\/\*/) {
            plain(rest); rest = ""
            comment = 1
            if (match(substr(text, 3), /\*\//)) {
                wrap("\\nwcomment", substr(text, 1, RSTART + 3))
                text = substr(text, RSTART + 4)
                comment = 0
            } else {
                wrap("\\nwcomment", text)
                text = ""
            }
        } else if (text ~ /^\/\//) {
            plain(rest); rest = ""
            wrap("\\nwcomment", text)
            text = ""
        } else if (match(text, /^"([^"\\]|\\.)*"?/) ||
                   match(text, /^'([^'\\]|\\.)*'?/)) {
            rest = rest substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
        } else if (match(text, /^[A-Za-z_][A-Za-z0-9_]*/)) {
            if (substr(text, 1, RLENGTH) in keyword) {
                plain(rest); rest = ""
                wrap("\\nwkeyword", substr(text, 1, RLENGTH))
            } else
                rest = rest substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
        } else {
            rest = rest substr(text, 1, 1)
            text = substr(text, 2)
        }
    }
    plain(rest)
}
