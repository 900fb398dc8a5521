"""`qed serve` as a user starts it: a saved model behind the API, asked by the standard library, up to its end."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from asking import ask as ask_server
from asking import connect, read_events

from qed.config.settings import ModelSettings
from qed.models.load import build_model, find_end_ids, load_model, prepare_model
from qed.sampling.base import Sampling
from qed.sampling.native.sampler import NativeSampler
from qed.serving.messages import COMPLETE

pytestmark = pytest.mark.xdist_group("serving")
TOKEN = "correct-horse"
KEY = {"Authorization": f"Bearer {TOKEN}"}
PROMPT = "1 and 2 €"
