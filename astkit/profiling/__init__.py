"""Costs of a run: samples, FLOPs, seconds, joules and memory, all counted or measured."""

from astkit.profiling.energy import EnergyMeter as EnergyMeter
from astkit.profiling.energy import EnergyReading as EnergyReading
from astkit.profiling.flops import BatchFlops as BatchFlops
from astkit.profiling.flops import Costs as Costs
from astkit.profiling.flops import FlopCounter as FlopCounter
from astkit.profiling.flops import PassFlops as PassFlops
from astkit.profiling.flops import count_flops as count_flops
from astkit.profiling.ledger import Flops as Flops
from astkit.profiling.ledger import Ledger as Ledger
from astkit.profiling.ledger import SampleCounts as SampleCounts
from astkit.profiling.memory import peak_memory as peak_memory
from astkit.profiling.memory import peak_tensor_bytes as peak_tensor_bytes
from astkit.profiling.timing import Timings as Timings
from astkit.profiling.timing import bootstrap_interval as bootstrap_interval
from astkit.profiling.timing import interleaved as interleaved
