
_tabane_or_command() {
    local i names
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        COMPREPLY=()
        if declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -c -- "$2"))
        fi
        return
    done
    _tabane "$@"
    [[ $2 == -* ]] && return
    case "${COMP_WORDS[*]:1:COMP_CWORD-1}" in
        *--link | *--lan | open | 'policy set' | 'policy unset')
            names=$(_tabane_names interface links) ;;
        *--relay | leave | 'relays prefer') names=$(_tabane_names name relays) ;;
        *--neighbour | 'share forget') names=$(_tabane_names name share list) ;;
        'peer remove') names=$(_tabane_names name peer list) ;;
        demo | 'lab run' | 'lab up' | 'sim run')
            # A file will do as well.
            COMPREPLY=($(compgen -W '@SCENARIOS@' -- "$2") $(compgen -f -- "$2"))
            return ;;
        *) return ;;
    esac
    COMPREPLY=($(compgen -W "$names" -- "$2"))
}

# The values of a key in what a command prints for programs.
_tabane_names() {
    "${COMP_WORDS[0]}" "${@:2}" --json 2>/dev/null |
        sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p"
}
