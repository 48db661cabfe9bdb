from worlds.fleet_control import World
def test_smoke():
    w=World(); a,b,c=w.add("a","b","c"); w.tick()
    w.control.create_tenant("t")
    n=w.node_of("t"); assert n.held["t"].txn==1
    assert n.commit("t").verdict=="granted"
    n.is_down=True
    w.wait(2.5)
    m=w.node_of("t"); assert m is not n and m.held["t"].base==1
    assert m.commit("t",lsn=2).verdict=="granted"
    n.is_down=False
    w.wait(1.0)
    assert "t" not in n.held
    print(w.control.transactions("t"), w.control.events(), w.log.pruned)
