"""Flags and configuration files with values that no run can have."""

from __future__ import annotations

from collections.abc import Iterator

from tests.torture.harness import Case

QUICK = ("run", "--task", "digits", "--model", "logistic", "--rounds", "1", "--clients", "4", "--method")
METHOD_OF = {
    "lam": "fedpals",
    "ess": "fedpals",
    "proximal-weight": "fedprox",
    "server-step": "scaffold",
    "absent-factor": "fedrs",
    "adjustment": "logit_adjusted",
    "label-floor": "logit_adjusted",
    "mixture-step": "afl",
    "calibration": "fedlc",
    "importance-source": "iwerm",
    "importance-clip": "iwerm",
    "discrepancy-weight": "feddisco",
    "discrepancy-offset": "feddisco",
}
"""Method that has an option."""
WORDS = (
    "scale",
    "impute",
    "optimizer",
    "schedule",
    "augment",
    "model",
    "backbone",
    "method",
    "task",
    "target-estimate",
    "importance-source",
)
WHOLE = ("clients", "labels-per-client", "samples-per-client", "epochs", "steps", "batch-size", "rounds", "patience")
WHOLE_OTHERS = ("seeds", "workers", "checkpoint-every", "test-samples", "validation-samples")
NUMBERS = (
    "beta",
    "learning-rate",
    "clip-norm",
    "participation",
    "count-epsilon",
    "held-out",
    *(flag for flag in METHOD_OF if flag not in WORDS),
)
MAY_BE_ZERO = {
    "lam",
    "proximal-weight",
    "server-step",
    "absent-factor",
    "adjustment",
    "label-floor",
    "mixture-step",
    "calibration",
    "discrepancy-weight",
    "discrepancy-offset",
}
FRACTIONS = ("momentum", "server-momentum", "averaging")


def cases() -> Iterator[Case]:
    """Yield cases of `fedpals run` and its configuration files."""
    yield from _flags()
    yield from _files()
    yield from _combinations()


def _flag(flag: str, value: str, *words: str) -> Case:
    command = (*QUICK, METHOD_OF.get(flag, "fedavg"))
    return Case(f"flag: --{flag} {value}", (*command, f"--{flag}={value}"), words or (_key(flag), value))


def _key(flag: str) -> str:
    return flag.replace("-", "_")


def _flags() -> Iterator[Case]:
    for flag in (*WHOLE, *WHOLE_OTHERS):
        for value in ("0", "-1"):
            yield _flag(flag, value, value)
        for value in ("1.5", "abc", "", "nan", "0x10"):
            yield _flag(flag, value, "Invalid value")
    for flag in ("clients", "labels-per-client", "samples-per-client"):
        yield _flag(flag, "99999999999999999999", _key(flag))
    for flag in NUMBERS:
        for value in ("-1", "nan", *(() if flag in MAY_BE_ZERO else ("0",))):
            yield _flag(flag, value, _key(flag))
        if flag != "ess":  # which may be a word
            yield _flag(flag, "abc", "Invalid value")
    for flag in FRACTIONS:
        for value in ("-0.1", "1", "1.5", "nan", "inf"):
            yield _flag(flag, value, _key(flag))
    for flag in ("participation", "held-out", "ess"):
        yield _flag(flag, "1.5", _key(flag))
    for value in ("autom", "AUTO", "auto,0.5", "abc", "", "inf", "0,5"):
        yield _flag("ess", value, "ess", "'auto'")
    for flag in ("learning-rate", "beta", "count-epsilon", "clip-norm", "proximal-weight"):
        yield _flag(flag, "inf", _key(flag))
    for flag in WORDS:
        for value in ("nonsense", "__import__('os')", "../../etc/passwd"):
            yield _flag(flag, value, value)
    for value in ("gpu", "tpu9", "cuda", "cuda:7", "meta", "", "cpu:99"):
        yield _flag("device", value, "device")
    yield _flag("seed", "-1", "seed")
    yield _flag("tracker", "paper", "paper")
    yield _flag("ray", "nowhere:1", "nowhere:1")


def _files() -> Iterator[Case]:
    quick = 'task = "digits"\nmodel = "logistic"\nrounds = 1\nclients = 4\nmethod = "fedavg"\n'
    for line, words in {
        "seed = 1.5": ("seed", "1.5"),
        'seed = "abc"': ("seed", "abc"),
        "seed = -1": ("seed", "-1"),
        "seed = [0, 1]": ("seed", "[0, 1]"),
        "seed = true": ("seed", "true"),
        "seeds = 0": ("seeds", "0"),
        "seeds = -3": ("seeds", "-3"),
        'seeds = "3"': ("seeds", "'3'"),
        "seeds = [0, 1]": ("seeds", "[0, 1]"),
        "seeds = 1.5": ("seeds", "1.5"),
        "seeds = true": ("seeds",),
        "labels_per_client = 99999999999999999999": ("labels_per_client",),
        "labels_per_client = 2.5": ("labels_per_client", "2.5"),
        "labels_per_client = {}": ("labels_per_client",),
        'learning_rate = "fast"': ("learning_rate", "fast"),
        "learning_rate = nan": ("learning_rate",),
        "learning_rate = inf": ("learning_rate",),
        "learning_rate = 1979-05-27": ("learning_rate",),
        "learning_rat = 0.1": ("did you mean 'learning_rate'",),
        "[learning_rate]\nx = 1": ("learning_rate",),
        "optimizer = 3": ("optimizer", "3"),
        "target = [0.5, 0.4]": ("target",),
        "target = 3": ("target",),
        "workers = 2": ("'workers' is not a known key",),
        'ess = "auto!"': ("ess",),
    }.items():
        yield Case(f"file: {line}", ("run", "c.toml"), ("c.toml", *words), {"c.toml": quick + line + "\n"})
    for line, words in {
        "clients = 99999999999999999999": ("clients",),
        'clients = "four"': ("clients", "four"),
        "method = []": ("method",),
        "method = 3": ("method", "3"),
        'method = ["fedavg", 3]': ("method", "3"),
        "rounds = 0": ("rounds", "0"),
        "rounds = true": ("rounds", "true"),
        "task = 3": ("task", "3"),
    }.items():
        key = line.split()[0]
        rest = "".join(f"{other}\n" for other in quick.splitlines() if not other.startswith(key))
        yield Case(f"file: {line}", ("run", "c.toml"), ("c.toml", *words), {"c.toml": rest + line + "\n"})
    yield Case("file: not TOML", ("run", "c.toml"), ("c.toml: not a TOML file",), {"c.toml": "= 3"})
    yield Case("file: binary", ("run", "c.toml"), ("c.toml: not a TOML file",), {"c.toml": bytes(range(256))})
    yield Case("file: a key twice", ("run", "c.toml"), ("c.toml: not a TOML file",), {"c.toml": quick + quick})
    yield Case("file: a folder", ("run", "c.toml"), ("c.toml",), {"c.toml/x": ""})
    yield Case("file: missing", ("run", "c.toml"), ("c.toml: no such file",))


def _combinations() -> Iterator[Case]:
    """Flags that are right by themselves."""
    for flags, words in {
        ("--beta", "1", "--labels-per-client", "2"): ("beta", "labels_per_client"),
        ("--labels-per-client", "11"): ("labels_per_client", "11"),
        ("--clients", "1"): ("clients",),
        ("--samples-per-client", "1000000"): ("samples_per_client",),
        ("--target-estimate", "bbse"): ("held_out",),
        ("--momentum", "0.9", "--optimizer", "adam"): ("momentum",),
        ("--client-key", "x"): ("client_key",),
        ("--label-column", "x"): ("label_column",),
        ("--target-client", "x"): ("target_client",),
        ("--target", "t.csv"): ("t.csv",),
        ("--scale", "none"): ("scale",),
        ("--delta", "0.5"): ("delta",),
        ("--augment", "flip", "--task", "synthetic"): ("augment",),
        ("--model", "cnn", "--task", "synthetic"): ("cnn",),
        ("--model", "nowhere:Net"): ("nowhere",),
        ("--model", "json:nothing"): ("nothing",),
        ("--model", "os:getcwd"): ("os:getcwd",),
        ("--model", ":"): ("model",),
        ("--method", "fedavg", "--ess", "0.5"): ("ess",),
        ("--method", "fedprox+scaffold"): ("fedprox", "scaffold"),
        ("--method", "fedpals+afl"): ("fedpals", "afl"),
        ("--method", "fedpals", "--ess", "0.5", "--lam", "1"): ("ess", "lam"),
        ("--method", "fedpals", "--ess", "auto", "--lam", "1"): ("ess", "lam"),
        ("--method", "fedavg", "--ess", "auto"): ("ess",),
        ("--method", ""): ("method",),
        ("--method", ","): ("method",),
        ("--method", "fedavg+"): ("method",),
    }.items():
        yield Case(f"flags: {' '.join(flags)}", ("run", "--rounds", "1", *flags), words)
