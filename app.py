"""The what-if dashboard: ``streamlit run app.py``, or ``kvsim app``."""

from kvsim.dashboard.entry import main

main()
