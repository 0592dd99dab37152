# Completion of longring for bash: commands, their options, then files. It asks
# the program itself.
_longring() {
    local word=${COMP_WORDS[COMP_CWORD]} words=
    if [ "$COMP_CWORD" = 1 ]; then
        words=$(longring --help | awk '$1 == "longring" && $2 ~ /^[a-z]/ { print $2 }')
    elif [[ $word == -* ]]; then
        words=$(longring help "${COMP_WORDS[1]}" 2>/dev/null | grep -o -- '^  --[a-z-]*')
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _longring longring
