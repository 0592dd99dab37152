# Measured numbers for the prose, from figures/data/*.csv:
#
#     awk -f book/numbers.awk figures/data/*.csv > build/book/numbers.tex
#
# A data file opens with four head lines and a line of column names:
#
#     # machine: 2 cores of an AMD EPYC 7B13, 24 GiB, Debian 12, gcc 12.2
#     # date: 2026-11-21
#     # commit: 1a2b3c4
#     # command: build/longring plan --ranks 4 --new 8K --csv
#     placement,ranks,pairs,balance
#     naive,4,32004096,1.75
#
# A chapter about figures/data/balance.csv then writes
#
#     \datum{balance}{naive}{balance}      1.75, as it stands in the file
#     \rounded{1}{balance}{naive}{balance} 1.8, and 32,004,096 with \rounded{0}
#     \machine{balance}                    for the caption; also \measured (the
#                                          date), \commit and \command
#
# A row is named by its first column or, where that repeats, by as many of the
# first columns as tell all rows apart, joined with "/": naive/4. A name that
# does not exist stops the build, and so does a file without its head lines.
function fail(why) {
    print FILENAME ": " why > "/dev/stderr"
    bad = 1
}

function put(key, value) {
    gsub(/[\\{}]/, "", value)
    gsub(/[#$%&_]/, "\\\\&", value)
    print "\\expandafter\\def\\csname lr@" key "\\endcsname{" value "}"
}

function finish_file(    k, i, j, key, seen, unique) {
    if (file == "") return
    for (i = 1; i <= 4; i++)
        if (!(required[i] in head)) {
            print path ": no line \"# " required[i] ": ...\"" > "/dev/stderr"
            bad = 1
        } else
            put(file "/" required[i], head[required[i]])
    for (k = 1; k <= columns; k++) {
        split("", seen)
        unique = 1
        for (i = 1; i <= rows; i++) {
            key = row_key(i, k)
            if (key in seen) unique = 0
            seen[key] = 1
        }
        if (unique) break
    }
    if (k > columns) k = columns
    for (i = 1; i <= rows; i++)
        for (j = 1; j <= columns; j++)
            put(file "/" row_key(i, k) "/" column[j], cell[i, j])
}

function row_key(i, k,    j, key) {
    key = cell[i, 1]
    for (j = 2; j <= k; j++) key = key "/" cell[i, j]
    return key
}

BEGIN { split("machine date commit command", required, " "); FS = "," }
FNR == 1 {
    finish_file()
    path = FILENAME
    file = FILENAME
    sub(/^.*\//, "", file)
    sub(/\.csv$/, "", file)
    split("", head)
    columns = rows = 0
}
{ sub(/\r$/, "") }
/^#/ {
    if (match($0, /^# *[a-z]+ *:? */)) {
        name = substr($0, RSTART, RLENGTH)
        gsub(/[# :]/, "", name)
        head[name] = substr($0, RLENGTH + 1)
    }
    next
}
/^ *$/ { next }
columns == 0 { for (i = 1; i <= NF; i++) column[i] = $i; columns = NF; next }
{
    if (NF != columns) fail("line " FNR " has " NF " values for " columns " columns")
    rows++
    for (i = 1; i <= NF; i++) cell[rows, i] = $i
}
END { finish_file(); exit bad }
