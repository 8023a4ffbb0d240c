#!/bin/sh
# A child for `consumer-agent run --exec 'sh shell_child.sh'`: prints each record on stderr, because its standard output belongs
# to the agent. The agent writes one object per line, without spaces and with its keys always in the same order.
while IFS= read -r line; do
    case $line in
    '{"revoke":'*)
        printf '{"revoked":%s\n' "${line#'{"revoke":'}"
        ;;
    *)
        place=$(printf '%s\n' "$line" | sed 's/^{"record":{\("topic":"[^"]*","partition":[0-9]*,"offset":[0-9]*\),.*/\1/')
        value=$(printf '%s\n' "$line" | sed 's/.*"value_base64":"\([^"]*\)".*/\1/' | base64 -d)
        printf '%s %s\n' "$place" "$value" >&2
        printf '{"ack":{%s}}\n' "$place"
        ;;
    esac
done
