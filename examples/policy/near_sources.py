#!/usr/bin/env python3
"""A network-aware policy for `troupe place`: an expert goes to the node whose shards send it most rows.

Heaviest first, to a device that stays within a tenth of the mean load; on a load that does not tell sources apart,
to the lightest. One replica each. Compare the columns `balance` and `cross-node rows` with other policies' (README.md).
"""
import json
import sys


def place_layer(rows, source_rows, node_of_source, devices):
    """The device of each expert. `rows` is [experts], `source_rows` [sources][experts]."""
    free = [device["slots"] if device["live"] else 0 for device in devices]
    load = [0] * len(devices)
    most = 1.1 * sum(rows) / sum(1 for slots in free if slots > 0)
    placed = [[] for _ in rows]
    for expert in sorted(range(len(rows)), key=rows.__getitem__, reverse=True):
        near = {}  # rows that come from each node
        for node, sent in zip(node_of_source, source_rows):
            near[node] = near.get(node, 0) + sent[expert]
        room = [d for d in range(len(devices)) if free[d] > 0]
        lightest = min(room, key=load.__getitem__)
        level = [d for d in room if load[d] + rows[expert] <= most] or [lightest]
        device = max(level, key=lambda d: (near.get(devices[d]["node"], 0), -load[d]))
        placed[expert].append(device)
        load[device] += rows[expert]
        free[device] -= 1
    return placed


def main():
    question = json.loads(sys.stdin.readline())
    devices = question["topology"]["devices"]
    window = question["windows"][-1] if question["windows"] else {}
    even = [[1] * question["experts"]] * question["layers"]
    sources = window.get("source_rows", [])
    node_of_source = [devices[s * len(devices) // len(sources)]["node"] for s in range(len(sources))]
    layers = [
        place_layer(rows, [source[layer] for source in sources], node_of_source, devices)
        for layer, rows in enumerate(window.get("rows", even))
    ]
    print(json.dumps({"map": layers, "reason": f"experts near the {len(sources)} shards that ask them"}))


if __name__ == "__main__":
    main()
