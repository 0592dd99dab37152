# A noweb filter for the labs: for students the chapter up to "% for the
# lecturer", its holes by their names; with -v solutions=1 all of it, with the
# solutions in the holes. What a hole holds at first is printed only in a lab that
# says "% holes are shown".
BEGIN { hole = "^exercise: " }
/^@text % holes are shown$/ { shown = 1 }
/^@text % for the lecturer$/ { lecture = 1; cut = !solutions; next }
/^@begin (docs|code)/ { cut = lecture && !solutions }
/^@end (docs|code)/ && cut { if (lecture == 1) print; lecture++; cut = 0; next }
cut { next }
/^@defn / {
    name = substr($0, 7)
    skip = name ~ hole && (solutions || !shown)
    if (skip) { held = ""; next }
    printf "%s", held
    held = ""
    sub(hole, "", name)
    sub(/^solution: /, "", name)
    print "@defn " name
    next
}
/^@use / && substr($0, 6) ~ hole {
    name = substr($0, 6)
    sub(hole, "", name)
    if (solutions || shown) print "@use " name
    else print "@literal \\nwhole{" name "}"
    next
}
/^@begin code/ { held = $0 "\n"; next }
/^@end code/ && skip { skip = 0; next }
!skip { print }
