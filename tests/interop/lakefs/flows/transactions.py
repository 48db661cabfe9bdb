"""Transactions of the SDK: a hidden branch, a commit, a merge, and nothing left."""

from flows.expect import raises
from lakefs.exceptions import TransactionException


def a_transaction_is_one_merge(lake):
    """Its changes appear at once, with its message and metadata; its branch is hidden, and gone after."""
    made = lake.repository()
    main = made.branch("main")
    main.object("old").upload(b"1")
    main.commit("first")
    with main.transact("many changes", commit_metadata={"by": "test"}, tag="v1") as transaction:
        transaction.object("new").upload(b"2")
        transaction.object("old").delete()
        with transaction.object("written").writer() as writer:
            writer.write(b"3")
        transaction.commit_message = "many changes, renamed"
        assert [entry.path for entry in main.objects()] == ["old"]
        assert [entry.path for entry in transaction.objects()] == ["new", "written"]
        assert [branch.id for branch in made.branches()] == ["main"]
        assert len(list(made.branches(show_hidden=True))) == 2
    assert [entry.path for entry in main.objects()] == ["new", "written"]
    assert [branch.id for branch in made.branches(show_hidden=True)] == ["main"]
    log = list(main.log())
    assert log[0].message.startswith("Merge transaction")
    assert (log[1].message, log[1].metadata["by"]) == ("many changes, renamed", "test")
    assert made.tag("v1").get_commit().id == log[0].id


def an_error_leaves_nothing(lake):
    """Neither a change, nor a commit, nor a branch."""
    made = lake.repository()
    main = made.branch("main")
    before = main.head.id
    with raises(KeyError), main.transact("never") as transaction:
        transaction.object("new").upload(b"2")
        raise KeyError
    assert list(main.objects()) == []
    assert main.head.id == before
    assert [branch.id for branch in made.branches(show_hidden=True)] == ["main"]


def a_conflict_ends_a_transaction(lake):
    """What the branch has become meanwhile stays; the transaction's branch goes."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"1")
    main.commit("first")
    with raises(TransactionException), main.transact("late") as transaction:
        transaction.object("a").upload(b"transaction")
        main.object("a").upload(b"main")
        main.commit("faster")
    assert main.object("a").reader().read() == b"main"
    assert [branch.id for branch in made.branches(show_hidden=True)] == ["main"]


def a_transaction_without_a_message_works(lake):
    """The SDK's default message is empty; and a transaction that changes nothing fails and leaves nothing."""
    made = lake.repository()
    main = made.branch("main")
    with main.transact() as transaction:
        transaction.object("a").upload(b"1")
    assert main.object("a").exists()
    with raises(TransactionException), main.transact("nothing"):
        pass
    assert [branch.id for branch in made.branches(show_hidden=True)] == ["main"]
