# A notangle filter, after chunk-comments: marks where each definition of a
# chunk begins and ends in what is tangled.
/^@begin code/ { code = $3; n = 0; print; next }
/^@end code/ {
    # The last newline is the chunk's own: the mark stands before it.
    for (last = n; last > 0 && line[last] !~ /^@nl/; last--);
    for (i = 1; i <= n; i++) {
        if (i == last) print "@text \001e" code "\001"
        print line[i]
        if (line[i] ~ /^@nl/ && !begun) {
            print "@text \001b" code "\001"
            begun = 1
        }
    }
    code = begun = 0
}
code { line[++n] = $0; next }
{ print }
