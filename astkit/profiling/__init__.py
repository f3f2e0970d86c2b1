"""Costs of a run: samples, FLOPs, seconds, joules and memory, all counted or measured."""

from astkit.profiling.benchmark import Timings as Timings
from astkit.profiling.benchmark import bootstrap_interval as bootstrap_interval
from astkit.profiling.benchmark import interleaved as interleaved
from astkit.profiling.energy import EnergyMeter as EnergyMeter
from astkit.profiling.energy import EnergyReading as EnergyReading
from astkit.profiling.flops import FlopsPerSample as FlopsPerSample
from astkit.profiling.flops import count_flops as count_flops
from astkit.profiling.ledger import Flops as Flops
from astkit.profiling.ledger import Ledger as Ledger
from astkit.profiling.ledger import Samples as Samples
from astkit.profiling.memory import peak_memory as peak_memory
from astkit.profiling.throughput import Throughput as Throughput
from astkit.profiling.window import ProfilerWindow as ProfilerWindow
from astkit.profiling.window import peak_tensor_bytes as peak_tensor_bytes
