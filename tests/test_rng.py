from fedpals.rng import generator, integer_seed


def test_an_address_always_yields_the_same_stream() -> None:
    assert generator(7, "batches", 3, 1).random() == generator(7, "batches", 3, 1).random()


def test_seed_order_and_type_of_the_address_matter() -> None:
    addresses: list[tuple[int, tuple[str | int, ...]]] = [
        (0, ("a", 1, 2)),
        (1, ("a", 1, 2)),
        (0, ("a", 2, 1)),
        (0, ("a", "1", 2)),
        (0, ("a", 12)),
        (0, ()),
    ]
    draws = {generator(seed, *address).random() for seed, address in addresses}
    assert len(draws) == 6


def test_the_stream_is_pinned() -> None:
    # Committed results depend on these streams: a change here invalidates them.
    assert generator(0, "partition").integers(10**6, size=3).tolist() == [251039, 106224, 271340]
    assert integer_seed(0, "model") == 3140401433733960047
