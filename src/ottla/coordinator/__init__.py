"""Coordinators: state machines that change by appending records to a log, and the runtime that drives them."""
