# A noweb filter, after c-pieces.awk: puts tests and functions of plain C into a
# chapter, cut from the files that are compiled.
#
#   \exhibit{tests/test_plan.c}{one_buffer_overwrites_or_deadlocks}
#
# on a line of its own is the test or function of that name with the comment
# before it. A name that the file does not have stops the weaving.
/^@text \\exhibit\{[^{}]*\}\{[^{}]*\}$/ {
    split($0, part, /[{}]+/)
    show(part[2], part[3])
    next
}
{ print }

function show(file, name,    line, lines, head, first, last, i) {
    while ((getline line[lines + 1] < file) > 0) lines++
    close(file)
    head = "^(TEST|LOOP|LOOP_BY_TENS)\\(" name "[,)]|^[A-Za-z].*[ *]" name "\\(.*[^;]$"
    for (first = 1; first <= lines && line[first] !~ head; first++);
    for (last = first; last <= lines && line[last] !~ /^}/; last++);
    if (last > lines) {
        print "book: " file " has no test or function " name >"/dev/stderr"
        print "@fatal exhibit no such name"
        exit
    }
    while (line[first - 1] ~ /^(\/\*| \*)/) first--
    gsub(/_/, " ", name)
    print "@literal \\nwenddocs{}\\nwlines{" last - first + 2 "}{61}\\nwbegincode{0}" \
        "\\nwexhibit{" toupper(substr(name, 1, 1)) substr(name, 2) "}{" file "}{" first "}"
    in_comment = 0
    for (i = first; i <= last; i++) {
        print "@nl"
        pieces(line[i])
        tex = line[i] == "" ? "\\nwblank " : ""
        for (p = 1; p <= count; p++) {
            gsub(/[\\{}]/, "\\\\&", piece[p])
            tex = tex (kind[p] == "" ? piece[p] : "\\nw" kind[p] "{" piece[p] "}")
        }
        print "@literal " tex
    }
    print "@nl\n@literal \\nwexhibitend\\nwendcode{}\\nwbegindocs{0}\\nwdocspar"
}
