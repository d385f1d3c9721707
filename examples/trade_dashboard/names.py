"""Names of the codes in a trade message: provinces, categories and sellers, in Chinese and in English.

A message carries codes ("guangdong", "mobile", "mobile-07"); who shows them to people looks them up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A code and its names."""

    code: str
    chinese: str
    english: str


def _names(*names: tuple[str, str, str]) -> Mapping[str, Name]:
    return {code: Name(code=code, chinese=chinese, english=english) for code, chinese, english in names}


PROVINCES: Final = _names(
    ("anhui", "安徽", "Anhui"),
    ("beijing", "北京", "Beijing"),
    ("chongqing", "重庆", "Chongqing"),
    ("fujian", "福建", "Fujian"),
    ("gansu", "甘肃", "Gansu"),
    ("guangdong", "广东", "Guangdong"),
    ("guangxi", "广西", "Guangxi"),
    ("guizhou", "贵州", "Guizhou"),
    ("hainan", "海南", "Hainan"),
    ("hebei", "河北", "Hebei"),
    ("heilongjiang", "黑龙江", "Heilongjiang"),
    ("henan", "河南", "Henan"),
    ("hubei", "湖北", "Hubei"),
    ("hunan", "湖南", "Hunan"),
    ("inner_mongolia", "内蒙古", "Inner Mongolia"),
    ("jiangsu", "江苏", "Jiangsu"),
    ("jiangxi", "江西", "Jiangxi"),
    ("jilin", "吉林", "Jilin"),
    ("liaoning", "辽宁", "Liaoning"),
    ("ningxia", "宁夏", "Ningxia"),
    ("qinghai", "青海", "Qinghai"),
    ("shaanxi", "陕西", "Shaanxi"),
    ("shandong", "山东", "Shandong"),
    ("shanghai", "上海", "Shanghai"),
    ("shanxi", "山西", "Shanxi"),
    ("sichuan", "四川", "Sichuan"),
    ("tianjin", "天津", "Tianjin"),
    ("tibet", "西藏", "Tibet"),
    ("xinjiang", "新疆", "Xinjiang"),
    ("yunnan", "云南", "Yunnan"),
    ("zhejiang", "浙江", "Zhejiang"),
)
"""The 31 provinces of the mainland by code, including municipalities and autonomous regions."""

CATEGORIES: Final = _names(
    ("appliances", "家用电器", "Appliances"),
    ("baby", "母婴", "Mother & baby"),
    ("beauty", "美妆个护", "Beauty"),
    ("books", "图书", "Books"),
    ("clothing", "服饰", "Clothing"),
    ("computers", "电脑办公", "Computers"),
    ("food", "食品生鲜", "Food"),
    ("furniture", "家具家装", "Furniture"),
    ("jewellery", "珠宝钟表", "Jewellery"),
    ("mobile", "手机数码", "Mobile"),
    ("shoes", "鞋包", "Shoes & bags"),
    ("sports", "运动户外", "Sports"),
)
"""Categories of goods by code."""


def seller_name(seller: str) -> Name:
    """Return the name of a seller, whose code is a category and a number: "mobile-07". An unknown code is returned."""
    category, _, number = seller.rpartition("-")
    known = CATEGORIES.get(category)
    if known is None or not number.isdecimal():
        return Name(code=seller, chinese=seller, english=seller)
    return Name(
        code=seller, chinese=f"{known.chinese}旗舰店 {int(number)}", english=f"{known.english} store {int(number)}"
    )
