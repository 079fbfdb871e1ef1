"""Builds the optional compiled parts. Everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

# No compiler is not an error: ottla.protocol._speedups falls back to pure Python.
OPTIONS = {"extra_compile_args": ["-O3"], "optional": True}

try:
    from Cython.Build import cythonize
except ImportError:  # no Cython: pure Python is used
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                f"ottla.protocol.{name}",
                [f"src/ottla/protocol/{name}.py"],
                depends=["src/ottla/protocol/_cursor.pxd"],
                **OPTIONS,
            )
            for name in ("_kernels", "_arrow_decode", "_arrow_encode")
        ],
        language_level=3,
    )
    # One source, two modules: hot_path.py is also the pure-Python fallback, so its annotations stay plain Python.
    extensions += cythonize(
        [
            Extension(
                "ottla.client.producer._hot_path",
                ["src/ottla/client/producer/hot_path.py"],
                depends=["src/ottla/client/producer/_hot_path.pxd"],
                **OPTIONS,
            ),
        ],
        language_level=3,
        compiler_directives={"annotation_typing": False, "auto_pickle": False, "cdivision": True},
    )

setup(ext_modules=extensions)
