"""Evaluations: the ways to use a trained model in the target, and to select its round."""

from __future__ import annotations

from enum import StrEnum


class Correction(StrEnum):
    """Ways to use a trained model in the target."""

    RAW = "raw"
    """The model as trained."""
    PRIOR = "prior"
    """With the target prior correction."""
    CALIBRATED = "calibrated"
    """With a temperature and a bias per label, fitted to samples that clients held out."""
    GAUSSIAN = "gaussian"
    """With a Gaussian head instead of its last layer."""
    RECOMMENDED = "recommended"
    """With its own last layer and the Gaussian head, both calibrated and joined."""
    FEDCGS = "fedcgs"
    """With the head of FedCGS instead of its last layer."""
    FED3R = "fed3r"
    """With the head of Fed3R instead of its last layer."""
    FEDCOF = "fedcof"
    """With the head of FedCOF instead of its last layer."""
    CCVR = "ccvr"
    """With its last layer trained again as CCVR does."""

    @property
    def uses_last_round(self) -> bool:
        """Whether it replaces the last layer, which is done once, after the last round."""
        return self not in (Correction.RAW, Correction.PRIOR, Correction.CALIBRATED)


RIVAL_HEADS = (Correction.FEDCGS, Correction.FED3R, Correction.FEDCOF, Correction.CCVR)
"""Last layers of other authors, which are computed only where a run asks for them."""


class SelectedBy(StrEnum):
    """Criteria for the round whose model is selected."""

    VALIDATION = "validation"
    """Accuracy on validation data of the target."""
    ESTIMATE = "estimate"
    """Target accuracy estimated from samples that clients held out; needs no target sample."""
    POOLED = "pooled"
    """Plain accuracy on all samples that clients held out."""


class Evaluation(StrEnum):
    """A correction and how its round was selected, named as in records.

    The Gaussian head, the recommended layer and the heads of other authors are those of the last round; the
    recommended layer that of an earlier one, if training has spoiled the last.
    """

    RAW = "raw"
    RAW_BY_ESTIMATE = "raw/estimate"
    RAW_BY_POOLED = "raw/pooled"
    PRIOR = "prior"
    PRIOR_BY_ESTIMATE = "prior/estimate"
    PRIOR_BY_POOLED = "prior/pooled"
    CALIBRATED = "calibrated"
    CALIBRATED_BY_ESTIMATE = "calibrated/estimate"
    CALIBRATED_BY_POOLED = "calibrated/pooled"
    GAUSSIAN = "gaussian"
    GAUSSIAN_BY_ESTIMATE = "gaussian/estimate"
    """The Gaussian head, with its estimated target accuracy as the score."""
    RECOMMENDED = "recommended"
    """The recommended layer, with its estimated target accuracy as the score."""
    FEDCGS = "fedcgs"
    FEDCGS_BY_ESTIMATE = "fedcgs/estimate"
    FED3R = "fed3r"
    FED3R_BY_ESTIMATE = "fed3r/estimate"
    FEDCOF = "fedcof"
    FEDCOF_BY_ESTIMATE = "fedcof/estimate"
    CCVR = "ccvr"
    CCVR_BY_ESTIMATE = "ccvr/estimate"

    @classmethod
    def of(cls, correction: Correction, selected_by: SelectedBy) -> Evaluation:
        """Return the evaluation of a correction at the round that a criterion selects.

        >>> Evaluation.of(Correction.PRIOR, SelectedBy.ESTIMATE).value
        'prior/estimate'
        """
        return cls(correction if selected_by is SelectedBy.VALIDATION else f"{correction}/{selected_by}")

    @property
    def correction(self) -> Correction:
        """Correction with which the model is used."""
        return Correction(self.partition("/")[0])

    @property
    def selected_by(self) -> SelectedBy:
        """Criterion of its score, which selects the round where there is a choice of rounds."""
        if self is Evaluation.RECOMMENDED:  # has no suffix, but is fitted to held-out samples and scored on them
            return SelectedBy.ESTIMATE
        return SelectedBy(self.partition("/")[2] or SelectedBy.VALIDATION)
