"""Heart disease at four hospitals (Janosi, Steinbrunn, Pfisterer and Detrano 1989; UCI, CC BY 4.0).

920 patients of Cleveland, Hungary, Switzerland and Long Beach VA; 13 clinical variables, of which many are
missing; healthy (diagnosis 0) or sick (1 to 4). A client is a hospital.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpals.data.dataset import Dataset
from fedpals.data.official import OfficialFiles
from fedpals.data.official import read as read_file
from fedpals.errors import InputError

HOSPITALS = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "VA": "processed.va.data",
}
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
LABELS = ("healthy", "sick")

FILES = OfficialFiles(
    name="heart",
    folder="heart-disease",
    checksums={
        "processed.cleveland.data": "sha256:a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
        "processed.hungarian.data": "sha256:ca73b739efd8e29273aff13c1516a68e946be1786bda13a82f6f82173cd0dc6f",
        "processed.switzerland.data": "sha256:834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
        "processed.va.data": "sha256:e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
    },
    by_hand="copy processed.*.data of https://archive.ics.uci.edu/dataset/45/heart+disease into heart-disease/",
    downloads={
        f"https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/{name}": None
        for name in HOSPITALS.values()
    },
)


def read(root: Path) -> Dataset:
    """Return (920, 13) numbers, NaN where they are missing, with the hospital as domain.

    A serum cholesterol of 0, which no patient has, stands for a missing one (Switzerland has no other).
    """
    rows, hospital = [], []
    for number, name in enumerate(HOSPITALS.values()):
        text = read_file(FILES, root, name).decode("ascii")
        lines = [line.split(",") for line in text.splitlines() if line.strip()]
        if any(len(line) != len(COLUMNS) + 1 for line in lines):
            raise InputError(f"{root / name}: not {len(COLUMNS) + 1} values a line; delete it, then: {FILES.remedy}")
        rows += [[np.nan if value == "?" else float(value) for value in line] for line in lines]
        hospital += [number] * len(lines)
    table = np.array(rows)
    x, y = table[:, :-1].astype(np.float32), (table[:, -1] > 0).astype(np.int64)
    cholesterol = COLUMNS.index("chol")
    x[x[:, cholesterol] == 0, cholesterol] = np.nan
    everyone = {"train": np.arange(len(y))}
    return Dataset("heart", x, y, LABELS, everyone, np.array(hospital), tuple(HOSPITALS), COLUMNS)
