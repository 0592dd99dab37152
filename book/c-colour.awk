# A noweb filter: colours comments and keywords of C in code chunks, nothing
# else. It wraps pieces of text in TeX groups and leaves every character, and
# so every link that later stages make, as it was. A group never spans a line.
BEGIN {
    n = split("auto bool break case char const continue default do double " \
              "else enum extern false float for goto if inline int int32_t " \
              "int64_t int8_t int16_t long register restrict return short " \
              "signed sizeof size_t static struct switch true typedef " \
              "uint8_t uint16_t uint32_t uint64_t union unsigned void " \
              "volatile while NULL", words, " ")
    for (i = 1; i <= n; i++) keyword[words[i]] = 1
}
/^@begin code/ { code = 1; comment = 0 }
/^@end code/ { code = 0 }
code && /^@text / { colour(substr($0, 7)); next }
{ print }

function wrap(macro, text) {
    if (text != "")
        print "@literal " macro "{\n@text " text "\n@literal }"
}

function plain(text) {
    if (text != "") print "@text " text
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
