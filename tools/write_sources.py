"""Write the sources that are made from the op table and the functions of `xg.xp`.

python tools/write_sources.py
"""

from __future__ import annotations

from pages import typed

if __name__ == "__main__":
    typed.write_files()
