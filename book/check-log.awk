# Reads the log of the last LuaLaTeX pass and fails on what a reader would see:
# undefined or doubled labels, missing citations, glyphs that the font lacks,
# and lines that stick out by more than 10 pt. Names chapter, line and page.
function complain(what) {
    print "book: " what
    bad++
}
/^CHAPTER-FILE / { chapter = $2 }
{
    rest = $0 # pages are announced as [12 when they are shipped
    while (match(rest, /\[[0-9]+/)) {
        page = substr(rest, RSTART + 1, RLENGTH - 1)
        rest = substr(rest, RSTART + RLENGTH)
    }
}
/^LaTeX Warning: (Reference|Hyper reference) .* undefined/ ||
/^(LaTeX|Package natbib) Warning: Citation .* undefined/ ||
/^LaTeX Warning: Label .* multiply defined/ {
    sub(/^.*Warning: /, "")
    complain((chapter ? chapter ": " : "") $0)
}
/^Missing character: / { complain(chapter ", near page " page + 1 ": " $0) }
/^Overfull .hbox/ {
    match($0, /\([0-9.]+pt/)
    width = substr($0, RSTART + 1, RLENGTH - 3) + 0
    if (width > 10) {
        lines = ""
        if (match($0, /lines? [0-9-]+/)) lines = substr($0, RSTART, RLENGTH)
        complain(chapter ", " (lines ? lines : "a box or float") ", near page " page + 1 ": " width "pt too wide")
    } else if (width > 1)
        near++
}
/^Overfull .vbox/ {
    match($0, /\([0-9.]+pt/)
    if (substr($0, RSTART + 1, RLENGTH - 3) + 0 > 10)
        complain(chapter ", near page " page + 1 ": " $0)
}
/^LaTeX Warning: Float too large/ { complain(chapter ", near page " page + 1 ": " $0) }
END {
    if (near) print "book: " near " lines stick out by 1 to 10 pt"
    exit bad > 0
}
