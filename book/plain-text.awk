# Chapters as plain text, for the demonstration to read: prose without code,
# pictures, formulas on their own lines and TeX's commands.
function clean(s) {
    gsub(/\\(label|index|ref|cite[a-z]*)\{[^}]*\}/, "", s)
    gsub(/\\(chapter|section|subsection|emph|textbf|textit|question|aside|caption|text|mathrm|texttt|item)\**\{/, "", s)
    gsub(/\\item */, "- ", s)
    gsub(/\\(dots|ldots)/, "...", s)
    gsub(/\\times/, "x", s)
    gsub(/\\cdot/, "*", s)
    gsub(/\\leq?/, "<=", s)
    gsub(/\\geq?/, ">=", s)
    gsub(/\\infty/, "infinity", s)
    gsub(/\\[a-zA-Z]+\**/, "", s)
    gsub(/\\/, "", s)
    gsub(/[{}$]/, "", s)
    gsub(/\[\[|\]\]/, "", s)
    gsub(/~/, " ", s)
    gsub(/---/, " - ", s)
    gsub(/--/, "-", s)
    gsub(/``|''/, "\"", s)
    gsub(/  +/, " ", s)
    gsub(/ +\)/, ")", s)
    sub(/^ +/, "", s)
    sub(/ +$/, "", s)
    return s
}
function flush_paragraph(    s) {
    s = clean(paragraph)
    paragraph = ""
    if (s ~ /[A-Za-z]/) print s "\n"
}
FNR == 1 { code = skip = 0 }
/^<<.*>>=/ { flush_paragraph(); code = 1; next }
/^@( |$)/ { code = 0; next }
code { next }
/\\begin\{(figure|table|tikzpicture|tabular|transcript|equation|align|verbatim)/ { skip++ }
/\\\[/ { skip++ }
skip {
    if (/\\end\{(figure|table|tikzpicture|tabular|transcript|equation|align|verbatim)/) skip--
    if (/\\\]/) skip--
    next
}
/^%/ || /^\\(begin|end)\{/ { next }
/^[ \t]*$/ { flush_paragraph(); next }
/^\\(chapter|section|subsection)/ { flush_paragraph() }
{ sub(/([^\\])%.*$/, ""); paragraph = paragraph (paragraph == "" ? "" : " ") $0 }
/^\\(chapter|section|subsection)/ { flush_paragraph() }
END { flush_paragraph() }
