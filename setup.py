"""Builds the optional record kernels. Everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:  # no Cython: the pure-Python twin is used
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                "ottla.protocol._kernels",
                ["src/ottla/protocol/_kernels.py"],
                depends=["src/ottla/protocol/_cursor.pxd"],
                extra_compile_args=["-O3"],
                # No compiler is not an error: ottla.protocol._speedups falls back to pure Python.
                optional=True,
            )
        ],
        language_level=3,
    )

setup(ext_modules=extensions)
