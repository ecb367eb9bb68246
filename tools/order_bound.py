#!/usr/bin/env python3
"""What two micro-batches of whole stages can reach of the bound of a run, in whatever order.

Each micro-batch goes round attention -> dispatch -> experts -> combine, layer after layer; its shared expert comes
between two attentions. A device and a link each do one thing at a time and finish what they have begun. For every order
on the device and on the link, the period of the cycle is the largest ratio of time to layers along any circle of things
that wait for each other. The shortest period of all orders is compared with the bound that knows no order: the device's
time, the link's time, one micro-batch's chain. All devices and links are taken to be loaded alike. A schedule may do
better where it launches experts for a part of the rows, which costs a reading of their weights.
"""
import argparse
import itertools

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ring_of = ("attention", "dispatch", "experts", "combine")
for name in ring_of:
    parser.add_argument(name, type=float, help="time of one micro-batch in one layer, any unit")
parser.add_argument("--shared", type=float, default=0, help="of the shared expert, between two attentions")
given = parser.parse_args()

time = {stage + batch: getattr(given, stage) for batch in "01" for stage in ring_of}
chains = []  # (first, then, layers between them)
for batch in "01":
    ring = [stage + batch for stage in ring_of]
    chains += [(one, other, 0) for one, other in zip(ring, ring[1:])] + [(ring[3], ring[0], 1)]
    if given.shared > 0:
        time["shared" + batch] = given.shared
        chains += [(ring[0], "shared" + batch, 0), ("shared" + batch, ring[0], 1)]


def feasible(waits, period):
    start = dict.fromkeys(time, 0.0)
    for _ in range(len(time) + 2):
        changed = False
        for first, then, layers in waits:
            earliest = start[first] + time[first] - layers * period
            if earliest > start[then] + 1e-9 * period:
                start[then], changed = earliest, True
        if not changed:
            return True
    return False


def orders(users, layers_apart):
    """The ways in which `users` take turns: which follows which, and how many layers further it is."""
    for rest in itertools.permutations(users[1:]):
        order = (users[0],) + rest
        for layer in itertools.product(layers_apart, repeat=len(rest)):
            at = (0,) + layer
            after = [(i + 1) % len(order) for i in range(len(order))]
            yield [(order[i], order[j], at[j] - at[i] + (j == 0)) for i, j in enumerate(after)]


stages = [one + batch for one in ("attention", "experts", "shared") for batch in "01" if one + batch in time]
messages = [one + batch for one in ("dispatch", "combine") for batch in "01"]
bound = max(2 * (given.attention + given.experts + given.shared), 2 * (given.dispatch + given.combine),
            given.attention + given.dispatch + given.experts + given.combine)
best = 2 * sum(time.values())
for on_device in orders(stages, (-1, 0, 1)):
    if not feasible(chains + on_device, 0.999 * best):
        continue
    for on_link in orders(messages, (-2, -1, 0, 1, 2)):
        waits = chains + on_device + on_link
        if not feasible(waits, 0.999 * best):
            continue
        low, high = bound, best
        while high - low > 1e-4 * bound:
            middle = (low + high) / 2
            low, high = (low, middle) if feasible(waits, middle) else (middle, high)
        best = high
print(f"bound {bound:g}, best order {best:g}: {100 * bound / best:.1f} %")
