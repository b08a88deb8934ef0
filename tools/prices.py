"""The table of a price list, from a snapshot of gpurentalprices.com.

python tools/prices.py SNAPSHOT.json    # prints what stands under [gpurentalprices.usd_per_hour] in catalog/prices.toml

A snapshot is one of data/snapshots/*.json in github.com/adriannutiu/gpu-rental-prices (CC BY 4.0): offers, each with
its provider, GPU, memory, price of one GPU for an hour, kind, and the page it was read from.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

#: The snapshot's name of a GPU -> the catalogue's. Names that leave open which of several products is meant ("a100",
#: "h100", "v100") have no place.
NAMES = {
    "a10": "A10",
    "a100-pcie-40": "A100-PCIe-40GB",
    "a100-pcie-80": "A100-PCIe-80GB",
    "a100-sxm-40": "A100-40GB",
    "a100-sxm-80": "A100-80GB",
    "a30": "A30",
    "a40": "A40",
    "b200": "B200",
    "gb200": "GB200",
    "gh200": "GH200",
    "h100-nvl": "H100-NVL",
    "h100-pcie": "H100-PCIe",
    "h100-sxm": "H100-SXM",
    "h200": "H200",
    "h200-nvl": "H200-NVL",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "mi325x": "MI325X",
    "mi355x": "MI355X",
    "rtx-3090": "RTX-3090",
    "rtx-3090-ti": "RTX-3090-Ti",
    "rtx-4090": "RTX-4090",
    "rtx-5080": "RTX-5080",
    "rtx-5090": "RTX-5090",
    "rtx-6000-ada": "RTX-6000-Ada",
    "rtx-a4000": "RTX-A4000",
    "rtx-a5000": "RTX-A5000",
    "rtx-a6000": "RTX-A6000",
    "rtx-pro-6000": "RTX-PRO-6000-Blackwell",
    "rtx-pro-6000-server": "RTX-PRO-6000-Blackwell-Server",
    "rtx-pro-6000-wk": "RTX-PRO-6000-Blackwell",
    "v100-pcie": "V100-PCIe-16GB",
    "v100-sxm2": "V100-16GB",
}
#: Rented until the tenant gives it back. Left out are `spot` and `serverless`. RunPod's community cloud is a source of
#: its own, for its machines and prices are not those of the secure one.
KINDS = ("on-demand", "secure", "community")
#: Salad takes machines away without notice; AWS was read from a third party that is older than AWS's own prices; Google
#: prints the GPU without the machine that it needs.
LEFT_OUT = ("salad", "aws", "gcp")
#: A figure so many times the median of its GPU is for more than one GPU, or for a fabric that others do without.
MOST_OF_MEDIAN = 3.0

Prices = dict[str, dict[str, float]]


def prices_of(offers: Iterable[Mapping[str, Any]]) -> Prices:
    """The lowest price of each provider for each GPU of the catalogue, in dollars per hour."""
    found: Prices = defaultdict(dict)
    for offer in offers:
        if offer["kind"] in KINDS and offer["provider"] not in LEFT_OUT and offer["gpu"] in NAMES:
            provider = f"{offer['provider']}-community" if offer["kind"] == "community" else offer["provider"]
            prices = found[NAMES[offer["gpu"]]]
            prices[provider] = min(float(offer["usd_hr"]), prices.get(provider, inf))
    return {name: _usual(prices) for name, prices in found.items()}


def _usual(prices: Mapping[str, float]) -> dict[str, float]:
    most = MOST_OF_MEDIAN * median(prices.values())
    return {provider: price for provider, price in sorted(prices.items()) if price <= most}


def main() -> None:
    """Prints the table, in the order of `NAMES`."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = prices_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["offers"])
    for name in dict.fromkeys(NAMES.values()):
        if name in found:
            print(f"{name} = {{{', '.join(f'{provider} = {price:.2f}' for provider, price in found[name].items())}}}")


if __name__ == "__main__":
    main()
