# A noweb filter for weaving C, after c-pieces.awk. It colours comments and
# keywords, and nothing else: it wraps pieces of text in TeX groups and leaves
# every character, and so every link that later stages make, as it was. A group
# never spans a line.
# It also drops blank lines at a chunk's ends (they are for the tangled file; the
# prose gets them instead, so that line numbers stay) and says before each
# chunk how many lines it has, and whether a page may end between two of them:
# where a type is declared, only at a blank one.
/^@end docs/ { held = $0; next }
/^@begin code/ { code = 1; in_comment = lines = blanks = lead = started = type = n = 0 }
code && /^@text (typedef )?(struct|enum|union) .*\{$/ { type = 1 }
code && /^@text / { if ($0 != "@text ") { keep_blanks(); colour(substr($0, 7)) } next }
code && /^@nl/ { blanks++; next }
code && /^@end code/ {
    if (held != "") print "@literal \\nwlines{" lines + 1 "}{" (type ? 10000 : 61) "}\n" held
    held = ""
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

function colour(text,    i) {
    pieces(text)
    for (i = 1; i <= count; i++)
        if (kind[i] == "")
            out[++n] = "@text " piece[i]
        else
            out[++n] = "@literal \\nw" kind[i] "{\n@text " piece[i] "\n@literal }"
}
