# Runs in a guest, as root: runs what the host sends over a virtio port and returns how it ended.
#
# A request is the line "SECONDS SCRIPT INPUT" and then so many bytes of a script and of its stdin.
# The answer is the line "STATUS OUTPUT" and then so many bytes of stdout and stderr. The line
# "ready" goes first, after each boot.
port=/dev/virtio-ports/agent
until [ -e "$port" ]; do sleep 0.2; done
exec <>"$port" >&0
echo ready
while read -r seconds script input; do
    head -c "$script" >/run/agent.script
    head -c "$input" >/run/agent.input
    timeout -k 5 "$seconds" sh /run/agent.script </run/agent.input >/run/agent.output 2>&1
    echo "$? $(stat -c %s /run/agent.output)"
    cat /run/agent.output
done
