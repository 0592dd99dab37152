# What a reader would weigh of the book, from what hide.awk counted and from the
# places that TeX wrote: "code PAGE Y" and "text PAGE Y" where code begins and
# ends, in sp from the page's foot, between them "of FILE:LINE" and "line PAGE"
# for each line; "picture PAGE" and "formula PAGE"; "white PAGE PERCENT" and "end
# PAGE" of a chapter; "page TOP FOOT", of the text block. -v pages=N of the book.
# More than 400 pages, a chunk over 25 lines, a block of prose under ten words
# before one, fewer than four lines of a chunk on either side of a page's end and
# a picture between its halves are errors.
$1 == "long" || $1 == "short" {
    lines = $2
    sub(/^[a-z]+ [0-9]+ /, "")
    wrong($0 ": " (lines > 25 ? lines " lines" : lines " words before it"))
}
$1 == "page" { top = $2; foot = $3 }
$1 == "white" { white[$2] = $3 }
$1 == "end" { ends[$2] = 1; last = $2 }
$1 == "code" { from = $2; y = $3; split("", on); next }
$1 == "of" { place = $2 }
$1 == "line" { on[$2]++; torn = torn || picture }
$1 == "text" && from {
    for (p = from; p < $2; p++) {
        filled[p] += y - foot
        y = top
    }
    filled[p] += y - $3
    if (p > from && (on[from] < 4 || on[p] < 4))
        wrong("page " p ": " place " is torn to " on[from] " and " on[p] + 0 " lines")
    if (torn) wrong("page " p ": " place " is torn by a picture")
    from = torn = 0
}
$1 == "picture" || $1 == "formula" { seen[$2] = 1; picture = from }
$1 == "text" { picture = 0 }
END {
    for (p = 1; p <= pages; p++) {
        code += filled[p] > 0.85 * (top - foot)
        run = seen[p] || p > last ? 0 : run + 1 # lists end the book
        if (run > longest) { longest = run; where = p }
        if (white[p] > 33 && p < last && !ends[p]) empty = empty " " p
    }
    printf "build/long-ring.pdf: %d pages, %d of them code; without picture, table or formula %d at most, to page %d\n",
        pages, code, longest, where
    if (empty) print "more than a third white:" empty
    exit bad || pages > 400
}

function wrong(what) {
    print "book: " what
    bad = 1
}
