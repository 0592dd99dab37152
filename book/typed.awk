# Quantities that are typed into the prose: awk -f book/typed.awk book/*.nw names
# those of time, speed, share or size (a number with a unit; "three times as
# fast"; "half the time"), by chapter and line, and fails if there are any.
#
# What was measured comes from figures/data, by a macro. What somebody else says
# has a \cite in its sentence. What is neither stands, by its number, in a
# comment at the head of its paragraph that says where it is from:
#
#   % counted: 8.39 is 2 T D e bytes
#   % given: 42, for the example        or a bound that code or a test sets
#
# Code, drawings, transcripts and what is folded are not read.
function flush(    n, i, j, k, cited) {
    n = split(paragraph, word, " ")
    for (i = 1; i <= n; i = j) {
        cited = 0
        for (j = i; j <= n; j++) {
            if (word[j] ~ /\\cite/) cited = 1
            if (word[j] ~ /[.?!][)}'`]*$/ && word[j + 1] ~ /^[(`\\]*[A-Z]/) break
        }
        j++
        for (k = i; k < j; k++) if (cited) marks = marks " " bare(k); else check(k, n)
    }
    paragraph = marks = ""
}
function check(i, n,    w, after, k, what, seen) {
    w = bare(i)
    after = bare(i + 1)
    if (word[i] ~ /[,;:.)]$/) after = ""
    if (w ~ number && (after ~ unit || after ~ /^(tokens|bytes)$/ && bare(i + 3) == "second"))
        what = after
    else if (w ~ number && after == "times" && bare(i + 2 + (bare(i + 2) ~ /^(as|more|too)$/)) ~ speed)
        what = after " " bare(i + 2)
    else if (w ~ /^(a|an|one)$/ && after ~ /^(millisecond|microsecond|nanosecond|percent)$/)
        what = after
    else if (w ~ /^[a-z0-9.]+-(second|minute|hour|millisecond|microsecond)$|^(two|three|four|five|ten|hundred|thousand)fold$|^[0-9.]+x$|^0\.[0-9]+$/)
        what = " "
    else if (w ~ share)
        for (k = i + 1; k <= i + 4 && k <= n && !what && word[k - 1] !~ /[.,;:)]$/; k++)
            if (bare(k) ~ speed || bare(k) ~ /^(time|memory|second|millisecond|microsecond|minute|hour)$/)
                what = after " ... " bare(k)
    seen = " " marks " "
    gsub(/[,;:]+ /, " ", seen)
    if (what && !index(seen, " " w " ")) {
        print at[i] ": typed, without a source: " w " " what
        bad = 1
    }
}
function bare(i,    w) {
    w = tolower(word[i])
    gsub(/^[(`{]+|[.,;:?!)}'`]+$/, "", w)
    return w
}
BEGIN {
    number = "^([0-9][0-9.,]*(--[0-9.,]+)?|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|sixteen|twenty|thirty|forty|fifty|sixty|hundreds?|tens|dozens?|thousands?|million|half|few|several|many)$"
    unit = "^(s|ms|µs|ns|seconds?|(milli|micro|nano)seconds?|minutes?|hours?|\\\\%|percent|[kmgt]b|[kmgt]i?b/s|[gtp]flops?/s|[tg]f/s|(kilo|mega|giga|tera)bytes|cycles|tokens/s)$"
    speed = "^(fast|faster|slow|slower|longer|quick|quicker|slowly|speed|rate|long|time|pytorch|llama.cpp)$"
    share = "^(orders?|half|thirds?|quarters?|fifth|tenths?|twentieth|hundredth|twice|doubles?|doubled|halves|halved|triples?|tripled)$"
}
FNR == 1 { flush() }
/^<<.*>>=/ { flush(); code = 1; next }
code { if (/^@( |$)/) code = 0; next }
/^% folded: / || /^\\begin\{(tikzpicture|transcript)\}/ { skip = 1 }
/^% unfolded/ || /^\\end\{(tikzpicture|transcript)\}/ { skip = 0; next }
skip { next }
/^% (counted|given): / { marks = marks " " tolower($0); next }
/^%/ { next }
/^ *$/ { flush(); next }
{
    gsub(/\\(rounded|datum|divided|thousandths|millionths|scientific)(\{[^}]*\})+/, "@")
    gsub(/\[\[[^]]*\]\]/, "`")
    gsub(/\\sub\{[^}]*\}/, "") # the index prints nothing here
    gsub(/\{,\}/, ",")
    gsub(/~|\\,|\\ |\$|\\(emph|textbf)\{/, " ")
    gsub(/\\times/, " times ")
    gsub(/tens of times/, "tens times")
    gsub(/\\%/, " &")
    from = split(paragraph, old, " ")
    paragraph = paragraph " " $0
    to = split(paragraph, old, " ")
    while (from < to) at[++from] = FILENAME ":" FNR
}
END { flush(); exit bad }
