"""Fixtures of the replay's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

TRAIN = """dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
squad,bert_base_uncased,32,adamw,3e-6,1,83.5,2
squad,bert_base_uncased,32,adamw,3e-6,1,84.0,3
squad,bert_base_uncased,32,adamw,3e-6,2,84.0,nan
squad,bert_base_uncased,32,adamw,3e-6,3,83.5,5
squad,bert_base_uncased,64,adamw,3e-6,1,84.0,4
squad,bert_base_uncased,16,sgd,3e-6,1,84.0,1
cifar100,shufflenetv2,32,adadelta,0.1,1,0.6,40
"""
_POWER = """dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
squad,bert_base_uncased,32,adamw,250,100,220
squad,bert_base_uncased,32,adamw,100,150,95
squad,bert_base_uncased,16,adamw,100,200,90
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Traces of one workload on one GPU."""
    (tmp_path / "summary_train.csv").write_text(TRAIN)
    (tmp_path / "summary_power_t4.csv").write_text(_POWER)
    return tmp_path
