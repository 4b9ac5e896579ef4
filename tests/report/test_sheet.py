from __future__ import annotations

from fedpals.report.sheet import Cell, Sheet
from fedpals.report.table import Spread

SHEET = Sheet.of(
    ["", "", "FedPALS", "A&B"],
    [
        ["β = 0.1", "as trained", Cell(Spread(0.924, 0.021, 8), "best"), Cell(Spread(0.91, 0.01, 8), "near")],
        ["β = 0.1", "+prior", Spread(0.5, 0.25, 2), None],
        ["50 %", "x_1", 0.125, "100 $"],
    ],
)


def test_latex_is_a_booktabs_table_with_the_best_in_bold() -> None:
    assert SHEET.latex("made by\nme").splitlines() == [
        "% made by",
        "% me",
        r"\begin{tabular}{llrr}",
        r"\toprule",
        r" &  & FedPALS & A\&B \\",
        r"\midrule",
        r"$\beta$ = 0.1 & as trained & $\mathbf{92.4 \pm 2.1}$ & \underline{$91.0 \pm 1.0$} \\",
        r" & +prior & $50.0 \pm 25.0$ &  \\",
        r"50 \% & x\_1 & 0.125 & 100 \$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv_repeats_names_and_gives_mean_std_and_seeds_columns_of_their_own() -> None:
    assert SHEET.csv().splitlines() == [
        ",,FedPALS mean %,FedPALS std %,FedPALS seeds,A&B mean %,A&B std %,A&B seeds",
        "β = 0.1,as trained,92.4,2.1,8,91,1,8",
        "β = 0.1,+prior,50,25,2,,,",
        "50 %,x_1,0.125,,,100 $,,",
    ]
