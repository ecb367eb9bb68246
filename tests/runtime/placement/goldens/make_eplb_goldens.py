#!/usr/bin/env python3
"""Makes eplb_goldens.bin from the published EPLB code (https://github.com/deepseek-ai/EPLB).

    git clone https://github.com/deepseek-ai/EPLB
    python3 make_eplb_goldens.py EPLB/eplb.py eplb_goldens.bin      # needs torch; about six minutes

The file has one record a layer, little-endian, in the order of cases below, loads and layers:

    uint32   FNV-1a over the replica counts of the experts
    uint32   FNV-1a over the expert of every slot, device by device; 0 where a tie could go either way
    float64  mean over maximum of the devices' rows

FNV-1a here takes a whole number at a time: hash = (hash ^ number) * 16777619 mod 2^32, from 2166136261.
A load is made of splitmix64 alone, so that C++ makes the same: load i has seed i + 1, and the rows of
(layer, expert) come from draw layer * 256 + expert: the product of its lowest three groups of 21 bits,
shifted right by 43, plus 1. Sums of a group's rows stay below 2^24 and are exact in FP32.
"""
import importlib.util
import struct
import sys

import numpy as np
import torch

LAYERS, EXPERTS, REPLICAS, GROUPS, LOADS = 58, 256, 288, 8, 200
CASES = [(4, 32), (18, 144)]  # nodes, devices


def load(number):
    draws = np.arange(1, LAYERS * EXPERTS + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(number + 1) + draws * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    low = np.uint64((1 << 21) - 1)
    product = (z & low) * (z >> np.uint64(21) & low) * (z >> np.uint64(42) & low)
    return ((product >> np.uint64(43)) + np.uint64(1)).astype(np.int64).reshape(LAYERS, EXPERTS)


def fnv(rows):
    hashed = np.full(rows.shape[0], 2166136261, dtype=np.uint64)
    for column in rows.T.astype(np.uint64):
        hashed = (hashed ^ column) * np.uint64(16777619) & np.uint64(0xFFFFFFFF)
    return hashed.astype(np.uint32)


def ties(rows, counts, nodes):
    """Whether two different groups, or two different experts, are equal anywhere that a choice is made."""
    if GROUPS % nodes == 0:
        sums = rows.reshape(GROUPS, -1).sum(-1)
        if len(np.unique(sums)) < GROUPS:
            return True
    each = (rows.astype(np.float32) / counts.astype(np.float32)).astype(np.float32)
    if len(np.unique(each)) < EXPERTS:
        return True
    # Replication: equal at some count on the way to the final ones.
    replicated = np.flatnonzero(counts > 1)
    on_the_way = [np.float32(rows[e]) / np.float32(c) for e in replicated for c in range(1, counts[e] + 1)]
    others = np.delete(rows.astype(np.float32), replicated)
    steps = np.concatenate([np.array(on_the_way, dtype=np.float32), others])
    return len(np.unique(steps)) < len(steps)


def main():
    spec = importlib.util.spec_from_file_location("eplb", sys.argv[1])
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)
    torch.set_num_threads(1)
    with open(sys.argv[2], "wb") as out:
        for nodes, devices in CASES:
            tied = 0
            for number in range(LOADS):
                rows = load(number)
                slots, _, counts = published.rebalance_experts(torch.from_numpy(rows), REPLICAS, GROUPS, nodes, devices)
                slots, counts = slots.numpy(), counts.numpy()
                each = rows.astype(np.float64) / counts
                held = np.take_along_axis(each, slots, axis=1).reshape(LAYERS, devices, -1)
                received = np.zeros((LAYERS, devices))
                for slot in range(held.shape[2]):
                    received = received + held[:, :, slot]
                balance = received.mean(-1) / received.max(-1)
                count_hashes, slot_hashes = fnv(counts), fnv(slots)
                for layer in range(LAYERS):
                    tie = ties(rows[layer], counts[layer], nodes)
                    tied += tie
                    out.write(struct.pack("<IId", count_hashes[layer], 0 if tie else slot_hashes[layer], balance[layer]))
            print(f"{nodes} nodes, {devices} devices: {tied} of {LOADS * LAYERS} layers have a tie")


if __name__ == "__main__":
    main()
