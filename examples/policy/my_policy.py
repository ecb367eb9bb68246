#!/usr/bin/env python3
"""A placement policy for `troupe place`: reads one line of JSON, writes one (docs/policies.md).

It expects the mean of all windows it is shown, gives spare slots to the largest replicas, and packs the replicas,
heaviest first, onto the lightest device that does not have the expert.
"""
import heapq
import json
import sys


def place_layer(rows, slots):
    """The devices of each expert. `rows`: rows of each expert; `slots`: how many replicas each device may hold."""
    count = [1] * len(rows)
    largest = [(-row, expert) for expert, row in enumerate(rows)]
    heapq.heapify(largest)
    devices = sum(1 for slot in slots if slot > 0)
    for _ in range(sum(slots) - len(rows)):
        _, expert = heapq.heappop(largest)
        count[expert] += 1
        if count[expert] < devices:
            heapq.heappush(largest, (-rows[expert] / count[expert], expert))
        if not largest:
            break

    load, free = [0.0] * len(slots), list(slots)
    placed = [[] for _ in rows]
    replicas = sorted((rows[e] / count[e], e) for e in range(len(rows)) for _ in range(count[e]))
    for row, expert in reversed(replicas):
        open_devices = [d for d in range(len(slots)) if free[d] > 0 and d not in placed[expert]]
        if not open_devices:  # every device with room has it: one replica fewer, unless it would be the first
            if placed[expert]:
                continue
            raise ValueError(f"no room for expert {expert}")
        device = min(open_devices, key=load.__getitem__)
        placed[expert].append(device)
        load[device] += row
        free[device] -= 1
    return placed


def main():
    question = json.loads(sys.stdin.readline())
    slots = [device["slots"] if device["live"] else 0 for device in question["topology"]["devices"]]
    windows = [window["rows"] for window in question["windows"]]
    layers = []
    for layer in range(question["layers"]):
        rows = [sum(window[layer][e] for window in windows) / len(windows) for e in range(question["experts"])]
        layers.append(place_layer(rows, slots))
    reason = f"the mean of {len(windows)} windows, heaviest first"
    print(json.dumps({"map": layers, "reason": reason}))


if __name__ == "__main__":
    main()
