"""Configurations from their keys, and what is said about those that are none."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedpals import InputError
from fedpals.config import did_you_mean, key_help, validated
from fedpals.data import Task


class Training(BaseModel):
    model_config = ConfigDict(extra="forbid")

    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = 0.1


class Run(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    rounds: int = 10
    training: Training = Training()
    sizes: list[Training] = []

    @field_validator("rounds")
    @classmethod
    def _some(cls, rounds: int) -> int:
        if rounds == 0:
            raise InputError("rounds is 0; give at least 1")
        return rounds


class Documented(BaseModel):
    """A model, whose own docstring is no key's."""

    rounds: int = 10
    """How many
    rounds."""
    seed: int = Field(default=0, description="Decides every draw.")
    """For readers of the source."""
    bare: int = 1

    @property
    def twice(self) -> int:
        """No key either."""
        return 2 * self.rounds


class TestKeyHelp:
    def test_it_is_the_docstring_below_the_key(self) -> None:
        assert key_help(Documented, "rounds") == "How many\nrounds."

    def test_a_description_goes_before_a_docstring(self) -> None:
        assert key_help(Documented, "seed") == "Decides every draw."

    def test_a_key_without_either_has_none(self) -> None:
        assert key_help(Documented, "bare") == ""


class TestValidated:
    def test_a_model_from_good_keys(self) -> None:
        assert validated(Run, {"name": "a", "training": {"batch_size": 8}}).training.batch_size == 8
        assert validated(Task, {"task": "digits", "clients": None}) == Task()

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"round": 3}, "'round' is not a known key; did you mean 'rounds'?"),
            ({"colour": 3}, "'colour' is not a known key; the keys are name, rounds, training, sizes"),
            (
                {"training": {"batchsize": 3}},
                "'training.batchsize' is not a known key; did you mean 'batch_size'?",
            ),
            ({"sizes": [{"batchsize": 3}]}, "'sizes.0.batchsize' is not a known key; remove it"),
            ({"rounds": "ten"}, "rounds is 'ten'; it must be a valid integer"),
            ({"rounds": 1.5}, "rounds is 1.5; it must be a valid integer, got a number with a fractional part"),
            ({"rounds": 0}, "rounds is 0; give at least 1"),
            ({"training": {"batch_size": 0}}, "training.batch_size is 0; it must be greater than or equal to 1"),
            (
                {"rounds": 0, "training": {"batch_size": 0}},
                "rounds is 0; give at least 1\ntraining.batch_size is 0; it must be greater than or equal to 1",
            ),
        ],
    )
    def test_complaints_name_key_value_and_remedy(self, keys: dict[str, object], message: str) -> None:
        with pytest.raises(InputError) as caught:
            validated(Run, {"name": "a", **keys})
        assert str(caught.value) == message

    def test_a_missing_key(self) -> None:
        with pytest.raises(InputError, match="the key 'name' is missing; add it"):
            validated(Run, {})

    def test_suggestions_are_near_or_none(self) -> None:
        assert did_you_mean("labels_per_clients", Task.model_fields) == "; did you mean 'labels_per_client'?"
        assert did_you_mean("zzz", Task.model_fields) == ""
