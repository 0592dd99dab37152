# A noweb filter: marks the public names that a chunk defines, so that they are
# indexed and linked even where a chapter has no %def for them. Public names
# start with cp_ or CP_. Names that %def gives already are not marked twice.
/^@begin code/ { code = 1; split("", defined); line = "" }
/^@index defn / { if (($3) in defined) next; defined[$3] = 1 }
code && /^@text / { line = line substr($0, 7) }
code && /^@nl/ { look(line); line = "" }
/^@end code/ {
    for (name in found)
        if (!(name in defined)) print "@index defn " name
    split("", found)
    code = 0
}
{ print }

# Definitions and declarations begin in column one: "cp_status cp_fail(...",
# "} cp_shape;", "typedef struct cp_comm cp_comm;", "#define CP_NO_RANK (-1)".
function look(text) {
    if (text ~ /^static .*;$/ || text ~ /^ *(return|extern)/) return
    if (match(text, /^[a-z][a-z0-9_ ]*[ *]cp_[a-z0-9_]+\(/)) mark(text)
    else if (match(text, /^} *cp_[a-z0-9_]+;/)) mark(text)
    else if (match(text, /^typedef .*[ *(]cp_[a-z0-9_]+[;)]/)) mark(text)
    else if (text ~ /^#define CP_[A-Z0-9_]+ static /) return # a word for it
    else if (match(text, /^#define CP_[A-Z0-9_]+/)) mark(text)
}

function mark(text,    name) {
    name = substr(text, RSTART, RLENGTH)
    sub(/[;()]+$/, "", name)
    sub(/^.*[^A-Za-z0-9_]/, "", name)
    if (name !~ /_H$/) found[name] = 1 # a header's guard is no name
}
