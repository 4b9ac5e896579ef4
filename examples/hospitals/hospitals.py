"""Four hospitals, each in turn the target: only the share of sick patients there is known, no patient.

fedpals data get heart          # or copy the files, see `fedpals data`
python examples/hospitals/hospitals.py
"""

import numpy as np

import fedpals as fp
from fedpals.data import load

heart = load("heart")  # 920 patients, 13 clinical variables, many of them missing
hospital = np.array(heart.domains)[heart.domain]
diagnosis = np.array(heart.labels)[heart.y]

for target in heart.domains:
    clients = hospital != target
    share = float(np.mean(diagnosis[~clients] == "sick"))  # all that anybody knows about the target
    federation = fp.Federation.of(
        heart.x[clients],
        diagnosis[clients],
        client=hospital[clients],
        target={"healthy": 1 - share, "sick": share},
        impute="median",
        name=f"hospitals-without-{target}",
    )
    study = fp.train(
        federation, methods=["fedavg", "fedpals"], rounds=30, seeds=3, learning_rate=0.03, out="out/hospitals"
    )
    model = study.best()  # chosen without a target sample
    right = model.predict(heart.x[~clients]) == diagnosis[~clients]  # which only this example can know
    print(f"\n{target}: {share:.0%} of the patients are sick\n{study.table()}")
    print(f"the best by that estimate, {model.facts.correction.value}: {right.mean():.1%} right at {target}")
