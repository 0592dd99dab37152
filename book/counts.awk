# What a reader would weigh of the book, from what hide.awk counted and from the
# places that TeX wrote: "code PAGE Y" and "text PAGE Y" where code begins and
# ends, in sp from the page's foot; "picture PAGE" and "formula PAGE"; "page
# TOP FOOT", of the text block. -v pages=N of the book. More than 420 pages, a
# chunk over 25 lines and a block of prose under ten words before one are errors.
$1 == "long" || $1 == "short" {
    lines = $2
    sub(/^[a-z]+ [0-9]+ /, "")
    print "book: " $0 ": " (lines > 25 ? lines " lines" : lines " words before it")
    bad = 1
}
$1 == "page" { top = $2; foot = $3 }
$1 == "code" { from = $2; y = $3; next }
$1 == "text" && from {
    for (p = from; p < $2; p++) {
        filled[p] += y - foot
        y = top
    }
    filled[p] += y - $3
    from = 0
}
$1 == "picture" || $1 == "formula" { seen[$2] = 1 }
END {
    for (p = 1; p <= pages; p++) {
        code += filled[p] > 0.85 * (top - foot)
        run = seen[p] ? 0 : run + 1
        if (run > longest) { longest = run; where = p }
    }
    printf "build/long-ring.pdf: %d pages, %d of them code; without picture, table or formula %d at most, to page %d\n",
        pages, code, longest, where
    exit bad || pages > 420
}
