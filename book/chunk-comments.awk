# A notangle filter: a chunk used alone on an indented line leaves its name
# as a comment above the code that replaces it.
/^@begin code/ { code = 1 }
/^@end code/   { flush_line(); code = 0 }
code && /^@(text|use) / { line[n++] = $0; next }
code && /^@nl/ { line[n++] = $0; flush_line(); next }
{ flush_line(); print }

function flush_line(    name, i) {
    if (n >= 3 && n <= 4 && line[0] ~ /^@text +$/ && line[1] ~ /^@use / &&
        (n == 3 || line[2] == "@text ")) {
        name = substr(line[1], 6)
        sub(/^(solution|exercise): /, "", name)
        gsub(/\[\[|\]\]/, "", name)
        print line[0] "/* " toupper(substr(name, 1, 1)) substr(name, 2) ". */\n@nl"
    }
    for (i = 0; i < n; i++) print line[i]
    n = 0
}
