"""How numbers and tables are written."""

from lib.text import format_bytes, format_share, format_time, plural, table


def test_numbers_are_written_with_three_digits_and_a_fitting_unit():
    times = (0.0, 1e-10, 5e-7, 0.000123456, 0.0594, 0.99949, 0.9996, 12.345, 1234.5)
    assert [format_time(seconds) for seconds in times] == (
        ["0 s", "0.100 ns", "500 ns", "123 µs", "59.4 ms", "999 ms", "1.00 s", "12.3 s", "1234 s"]
    )
    in_units = (format_time(0.5, "ms"), format_time(7, "clock"), format_time(1, "clock"), format_time(1.5, "clock"))
    assert in_units == ("500 ms", "7 clocks", "1 clock", "1.5 clocks")
    sizes = [format_bytes(size) for size in (0, 999, 1000, 2.5e9, -1e6)]
    assert sizes == ["0 B", "999 B", "1.00 kB", "2.50 GB", "-1.00 MB"]
    assert format_share(0.204) == "20 %"
    assert [plural(n, "rank") for n in (0, 1, 2, 1234567)] == ["0 ranks", "1 rank", "2 ranks", "1234567 ranks"]
    assert [plural(n, "copy", "copies") for n in (1, 2)] == ["1 copy", "2 copies"]
    aligned = table([("lane", "spans"), ("a", "7"), ("longer", "")])
    assert aligned.splitlines() == ["lane    spans", "a           7", "longer"]
