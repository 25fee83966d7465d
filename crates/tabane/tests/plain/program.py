"""A program that knows nothing of tabane: tries sockets in every way, and prints what it saw.

program.py WAY       sockets, or by the proxy of its environment: socks, connect

A line of JSON per cell: its name, what happened ("-": not so here), and a remark that is not
compared. CELL of the environment: only cells whose name has these words.
"""
import json, os, sys, threading

import cells
# In the order of the table.
import connecting, conversing, naming, datagrams, commands

# Longer than any cell lasts, shorter than people wait.
PATIENCE_S = 40
AT_ONCE = 12

def run(function, way):
    try:
        found = function(way)
    except Exception as error:
        found = f"{type(error).__name__}: {cells.error_name(error) if isinstance(error, OSError) else error}"
    return found if isinstance(found, tuple) else (found, "")

def main():
    way = cells.way(sys.argv[1])
    wanted = [one for one in cells.CELLS if os.environ.get("CELL", "") in one[0]]
    results = {}
    waiting = [one for one in wanted if not way.proxied or sys.argv[1] in one[2]]
    for name, function, _, alone in waiting:
        if alone:
            one = threading.Thread(target=lambda: results.update({name: run(function, way)}), daemon=True)
            one.start()
            one.join(PATIENCE_S)
    together = [(name, function) for name, function, _, alone in waiting if not alone]
    lock = threading.Lock()
    def work():
        while True:
            with lock:
                if not together:
                    return
                name, function = together.pop(0)
            results[name] = run(function, way)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for one in wanted:
        what, remark = results.get(one[0], ("stuck", "")) if one in waiting else ("-", "")
        print(json.dumps({"cell": one[0], "is": f"{what}", "remark": remark}))
    sys.stdout.flush()
    # Whoever is stuck does not keep the rest.
    os._exit(0)

main()
