"""A self-test of this machine, in about a minute: ``python -m gemjax.check``.

It needs only the dependencies of the library, and runs on CPU devices, on one or several GPUs, and on TPUs. It prints these
parts, ready to be pasted into a report:

- **machine**: versions, operating system, devices, and where gemjax places the central variable and the workers;
- **law**: runs on these devices, their replays in the simulator, and the largest difference;
- **speed**: commits per second of the scheduler and steps per second of a bare loop;
- **overlap**: whether gradients on different devices overlap in time;
- **simulator**: commits per second, gradient by gradient and in windows;
- **memory**: the peak of each device that reports it, and of the process;
- **verdict**: one line with numbers.

The exit status is 0 if the law holds and every part ran, and 1 otherwise. A part that fails does not stop the others.
``--json FILE`` saves all figures. The output has this shape (shortened)::

    machine
      gemjax                 0.1.0
      jax                    0.10.2
      devices                3 × cpu
      central variable       on cpu:2
      workers                0, 2 on cpu:0
                             1, 3 on cpu:1

    law: a run on these devices and its replay by the simulator; matrix products at precision 'highest'
      method                 dtype      difference allowed    last place reordered  workers    staleness  replays
      gem                    float32    0          1e-04      2.8e-08    3.1e-02    4          3 to 8     same bits

    speed: momentum SGD, 64 rows per gradient
      parameters             commits/s  bare loop  ratio      one worker added per commit
      99,738                 1,012.5    1,367.2    0.74       827.2      477 µs

    overlap of gradients on different devices, one worker per device
      gradients at once      1.8 on 2 devices, of 13.8 ms each

    verdict (after 58 s)
      gemjax 0.1.0 works on 3 × cpu (AMD EPYC, 2 cores): the law holds to 0 in float32 (allowed 1e-04), 4 workers, …
"""

from gemjax.check.parts import run
from gemjax.check.report import Failure, Report

__all__ = ["Failure", "Report", "run"]
