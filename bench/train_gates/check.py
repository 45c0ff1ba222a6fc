#!/usr/bin/env python3
"""Compare the kernels of fast_ops.so for a gate with plain PyTorch: outputs, shares and gradients, both masks.

  check.py [fast_ops.so]
"""
# SPDX-License-Identifier: MIT
import sys
from train import Gates          # sets up the environment of the kernels first
import torch
import model as M


def outcome(gates, x):
    gates.begin()
    gates.zero_grad()
    y = gates.one(0, 0, x)
    (y.float().pow(2).sum() + 1e4 * gates.soft[0]).backward()
    return [y.float(), gates.soft[0], gates.kept[0][0]] + [p.grad.clone() for p in gates.parameters()]


def main():
    if not M.load_fast(sys.argv[1] if len(sys.argv) > 1 else "./fast_ops.so"):
        sys.exit("no kernels: give the path of fast_ops.so; the CPU must have AMX")
    lib, worst = M.LIB, 0.0
    torch.manual_seed(0)
    x = (torch.randn(256, 128) * 2).bfloat16()
    for mask in ("soft", "hard"):
        gates = Gates(torch.linalg.qr(torch.randn(2, 1, 128, 128))[0], mask)
        with torch.no_grad():
            gates.weights.copy_(torch.randn(gates.weights.shape) * .05)
            gates.bias.copy_(torch.randn(gates.bias.shape))
        both = []
        for M.LIB in (lib, None):
            both.append(outcome(gates, x))
        differences = [float((a - b).norm() / b.norm()) for a, b in zip(*both)]
        print(mask, " ".join("%.1e" % d for d in differences))
        worst = max(worst, *differences)
    sys.exit(worst > .02)        # bf16, and a number at the threshold may fall on either side


if __name__ == "__main__":
    main()
