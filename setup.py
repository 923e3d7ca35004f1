"""The compiled part, which is optional: without a compiler the package installs and trains by torch alone.

Everything else is in pyproject.toml. The code is made for the machine it is built on; on another one it is
not used if instructions are missing.
"""

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "discretion.engine._clients",
            ["src/discretion/engine/_clients.cpp"],
            depends=sorted(str(header) for header in Path("src/discretion/engine").glob("_*.hpp")),
            # no -ffast-math: an update that is not finite must stay so, and be dropped
            extra_compile_args=[
                *("-std=c++17", "-O3", "-march=native", "-pthread"),
                *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
            ],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
