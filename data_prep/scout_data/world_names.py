"""Parts of the made-up world's names. A name is two parts, so that unseen names are made of seen parts."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _words("""
    Mara Ivo Lena Tobin Sella Orin Petra Hale Wren Dario Nadia Felix Greta Hugo Ines Jonas Kaia Luca
    Mina Nils Olga Pavel Quinn Rosa Stefan Tara Ulf Vera Wanda Xavier Yara Zeno Alba Bruno Clara Dimas
""")
LAST = _words("""
    Velton Arkwell Brandt Corvin Dastan Elmore Farrow Grell Hollis Ingram Kestrel Lomond Marden Norcross
    Oakes Penrose Quill Ravel Sorrel Tamsin Underhill Vance Whitby Yorke Zeller Ashdown Calder Drummond
    Ellery Finch Garrick Juniper Kirk Merrow Nash Pell
""")
TOWN_A = _words("""
    Silver North Old Upper Stone White Green Red Copper Winter Summer Golden East West South Lower Grand
    Long High Far Little Great New Inner
""")
TOWN_B = _words("""
    Falls Harbor Bridge Hollow Ridge Haven Grove Field Port Crossing Valley Point Springs Bay Gate Mill
    Cross Ford
""")
FIRM_A = _words("""
    Granite Helix Orbit Lumen Vertex Cobalt Nimbus Zephyr Titan Apex Delta Sigma Quartz Raven Falcon
    Onyx Pioneer Summit Beacon Atlas
""")
FIRM_B = _words("""
    Labs Systems Motors Foods Energy Textiles Robotics Media Airlines Optics Shipping Steel Glass
""")
BOOK_A = _words("""
    Silent Broken Hidden Burning Distant Frozen Crimson Hollow Endless Forgotten Restless Gentle Bitter
    Shining Wandering Sleeping Velvet Scarlet
""")
BOOK_B = _words("""
    Garden Mirror River Letters Winter Shadow Orchard Lantern Island Voyage Clock Palace Forest Daughter
    Kingdom Bird Window Storm
""")
RIVER_A = _words("""
    Blue Black Swift Quiet Cold Deep Misty Amber Ivory Jade Proud Stormy Sunny Hazel Maple Cedar
""")
RIVER_B = _words("""
    Serpent Otter Heron Salmon Willow Reed Brook Stream Wolf Badger Swan Eel Pike Beaver Crane Trout
""")
