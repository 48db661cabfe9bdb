"""Several processes behind one address."""


def all_of_them_answer(lake):
    """Requests of new connections come to each, and each knows what the others have done."""
    made = lake.repository()
    main = made.branch("main")
    seen = set()
    number = 0
    while len(seen) < 2:
        assert number < 500, f"only {seen} answered"
        main.object("a").upload(f"{number}", pre_sign=False)
        place = f"/api/v1/repositories/{made.id}/refs/main/objects?path=a"
        status, headers, body = lake.ask("GET", place, Connection="close")
        assert (status, body) == (200, str(number).encode())
        seen.add(headers["x-request-id"].partition("-")[0])
        number += 1
