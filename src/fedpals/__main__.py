"""`fedpals` and `python -m fedpals`."""

from __future__ import annotations


def main() -> None:
    """Run the command line; Ctrl-C ends it quietly even while it is being loaded, which takes a moment."""
    try:
        from fedpals.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
