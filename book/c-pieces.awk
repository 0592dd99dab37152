# A line of C in pieces: piece[1..count], each with its kind[]: "comment",
# "keyword" or "". in_comment says whether a line begins inside a comment.
BEGIN {
    n = split("auto bool break case char const continue default do double " \
              "else enum extern false float for goto if inline int int32_t " \
              "int64_t int8_t int16_t long register restrict return short " \
              "signed sizeof size_t static struct switch true typedef " \
              "uint8_t uint16_t uint32_t uint64_t union unsigned void " \
              "volatile while NULL", words, " ")
    for (i = 1; i <= n; i++) keyword[words[i]] = 1
}

function pieces(text,    rest) {
    count = 0
    rest = ""
    while (text != "") {
        if (in_comment || text ~ /^\/\*/) {
            rest = keep(rest, "")
            if (match(substr(text, in_comment ? 1 : 3), /\*\//)) {
                RSTART += in_comment ? 1 : 3
                in_comment = 0
            } else {
                RSTART = length(text)
                in_comment = 1
            }
            keep(substr(text, 1, RSTART), "comment")
            text = substr(text, RSTART + 1)
        } else if (text ~ /^\/\//) {
            rest = keep(rest, "")
            keep(text, "comment")
            text = ""
        } else if (match(text, /^"([^"\\]|\\.)*"?/) ||
                   match(text, /^'([^'\\]|\\.)*'?/)) {
            rest = rest substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
        } else if (match(text, /^[A-Za-z_][A-Za-z0-9_]*/)) {
            if (substr(text, 1, RLENGTH) in keyword) {
                rest = keep(rest, "")
                keep(substr(text, 1, RLENGTH), "keyword")
                match(text, /^[A-Za-z_][A-Za-z0-9_]*/)
            } else
                rest = rest substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
        } else {
            rest = rest substr(text, 1, 1)
            text = substr(text, 2)
        }
    }
    keep(rest, "")
}

function keep(text, of) {
    if (text != "") {
        piece[++count] = text
        kind[count] = of
    }
    return ""
}
