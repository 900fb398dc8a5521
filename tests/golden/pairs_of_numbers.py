"""Pairs of answers that are one number: in words, in bases, with units, currencies and percent.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

SAME = r"""
# a base may stand in brackets or in words, and digits may be letters or in a text
ABC_{16} ## \text{ABC}_{16}
110111_2 ## 110111_{(2)}
2EF_{16} ## \mathrm{2EF}_{16}
1101_2 ## 1101 base 2
21_{5} ## 21 \text{ (base 5)}
1101_2 ## 1101 \text{ base } 2
# an engineer writes j, and cis is cosine and i times sine
3+4i ## 3+i4
3+4j ## 3+4i
7 \operatorname{cis}\frac{\pi}{2} ## 7i
# the currency may stand before or behind, in words or as a sign
\$36 ## US$36
£20 ## 20 pounds
£20 ## \pounds 20
5\text{ dollars} ## five dollars
\$10 ## \text{ten dollars}
\$36 ## \mathdollar 36
# a period that never ends is a fraction, and a comma may be the point where no list can be meant
0.(3) ## 1/3
0.333... ## 1/3
0.1666... ## \frac16
0.1(6) ## 1/6
0,05 ## 0.05
# minutes and mixed numbers of degrees
22.5^\circ ## 22\frac{1}{2}^\circ
10^\circ 30' ## 10.5^\circ
120^\circ ## 120{}^\circ
# two forms of one value are one answer
\frac{7}{2} ## \frac{7}{2} \text{ or } 3.5
\frac{7}{2} ## 7\over2
\frac{2}{3} ## \left.\frac{2}{3}\right.
# fractions in words and in the fonts of other packages
\frac{5}{36} ## \sfrac{5}{36}
\frac{5}{36} ## \nicefrac{5}{36}
\frac{1}{2} ## one half
\frac{1}{2} ## \text{one-half}
\frac{2}{3} ## two thirds
\frac{2}{3} ## two-thirds
0.75 ## three quarters
\frac{3}{2} ## three halves
# numbers in words, and signs that only dress a number
1234567 ## 1'234'567
42 ## 42\
42 ## \$42\$
42 ## forty-two
42 ## \text{forty-two}
200 ## two hundred
25 ## twenty-five
125 ## one hundred twenty-five
125 ## one hundred and twenty five
3000 ## three thousand
1000000 ## one million
2000 ## 2\text{,}000
18 ## \color{red}{18}
18 ## \textcolor{blue}{18}
18 ## \large 18
18 ## 18 \blacksquare
18 ## 18\square
18 ## `18`
18 ## *18*
18 ## "18"
18 ## '18'
205 ## two hundred five
24 ## two dozen
# ordinals in words
5th ## fifth
fifth ## 5th
\text{fifth} ## 5
1st ## first
first ## 1
3rd ## third
12th ## twelfth
21st ## twenty-first
8\textsuperscript{th} ## 8
second ## 2nd
# a change in percent
25\% ## 25 per cent
20\% \text{ increase} ## 20\%
20\% ## 20\% \text{ increase}
# a letter behind a power of ten is a unit
2.5e-19 ## 2.5 \times 10^{-19} J
# a day of 24 hours
3:30\text{ p.m.} ## 15:30
45\text{ seconds} ## 45 s
6:00 ## 6:00 \text{ o'clock}
6 ## 6 \text{ o'clock}
# typographic quotes
5 ## “5”
# a unit in brackets
8 (packs of gum) ## 8
107 (ft) ## 107
12 (star-shaped stones) ## 12 stones
93 (video game consoles) ## 93
# nouns, phrases and fractions of units behind a number
5 ## 5 red apples
60 ## 60 \frac{\text{miles}}{\text{hour}}
9.8 ## 9.8\,\frac{\mathrm{m}}{\mathrm{s}^2}
24 ## 24 \text{ students in the school}
2.5 ## 2.5\ \Omega
2.5 ## 2.5\ \mathrm{k\Omega}
2.5 ## 2.5\ \mu\text{m}
2.5 ## 2.5\ \mathrm{J/(kg\cdot K)}
2.5 ## 2.5\ \text{pc}
2.5 ## 2.5\ \mathrm{\AA}
15 ## 15 more apples
8 ## 8 dollars more
# numbers in words with a part, with a noun, and in digits too
2.5 ## two and a half
2.5 ## two and a half hours
2.5 ## 2 and a half hours
2.5 ## x = 2 and a half
2.75 ## two and three-quarters
150\text{ minutes} ## two and a half hours
100.5 ## one hundred and a half
25 ## twenty-five dollars
42 ## forty-two apples
25\% ## twenty-five percent
105 ## one hundred and five dollars
5 ## 5 (five)
5 ## five (5)
25 ## 25 (twenty-five)
8 (packs of gum) ## 8
"""

DIFFERENT = r"""
# digits, base and order all count; a digit outside of its base makes no number
101_2 ## 5
12_3 ## 12_4
12_3 ## 21_3
12_3 ## 12_3 1
9_8 ## 9
FF_{16} ## FE_{16}
10_2 ## 2_{10}
# the imaginary part counts, and j is a unit only beside an i
3+4i ## 3+4k
3+4j ## 3+4k
1+i ## 1-i
2i ## 2
i ## j^2
2e^{i\pi/3} ## 2e^{i\pi/6}
1+2i,1-2i ## 1+2i
# another currency or another scale is another amount
\$5 ## 5 pounds
\$20 ## \$2
\$1.50 ## 15 cents
36\text{ euros} ## \$36
US\$36 ## A\$36
€20 ## 20 GBP
\$3 \text{ million} ## 3 thousand
\$10 ## ten cents
\$12 ## twelve euros
£20 ## 20 kg
# a rounded value is not the exact one
0.333... ## 0.333
0.333... ## 0.34
\frac13 ## 0.33...
0.1666... ## \frac{1}{7}
0.(3) ## 0.3
0.1(6) ## 0.16
2.71 ## e
3.142 ## 3.14
0.5 ## 0.5000001
0,5 ## 5
# a degree is no percent, no power and no radian
10^\circ 30' ## 10.3^\circ
45^\circ ## 45^2
45^\circ ## 45\%
22\frac12^\circ ## 11^\circ
30^\circ ## \frac{\pi}{3}
30^\circ ## 30 \text{ cm}
# another fraction in words
\frac{1}{2} ## one third
\frac{2}{3} ## two
\frac{2}{3} ## three halves
\frac{3}{4} ## three
\frac{1}{3} ## 1:2
\frac{1}{2} ## \frac{1}{2}x
\frac{2}{3} ## \frac{2}{3}\%
\frac{1}{2} ## \frac{2}{1}
\frac{1}{2} ## 1, 2
1\frac{1}{3} ## 1.3
3\frac{1}{7} ## \pi
\frac{22}{7} ## 3.14
# another number in words
25 ## twenty
200 ## two
205 ## two hundred
1000 ## one hundred
21 ## twenty, one
18 ## \color{18}
18 ## "81"
1000000 ## 1 billion
24 ## two dozen dozen
1234567 ## 1'234'568
123 ## 1 2 3
12 ## 12^1 3
5 ## 5 thousand
# another ordinal, or a fraction
fifth ## sixth
5th ## five fifths
21st ## twenty-second
5th ## 5 th 6
third ## one third
# a bare number below one is a share, and an increase is no decrease
0.25 ## 0.25\%
0.25\% ## 0.25
0.5\% ## 0.5
0.5 ## 0.5\%
5\% ## 0.5
20\% \text{ increase} ## 20\% \text{ decrease}
5\% ## 5 \text{ degrees}
12\% ## 0.012
12\% ## 12\% \text{ or } 13\%
50\% ## 50\% + 1
\frac{1}{3} ## 33\%
# another power of ten
2e3 ## 2e^3
1.5e3 ## 1.5e2
10^{-3} ## 0.01
2.5e-19 ## 2.5 \times 10^{-18} J
6.0\times10^{23} ## 6.02\times10^{23}
# a time is told in numbers alone
7:32 ## \sqrt7:32
6:00 ## -6:00
# no item of a list begins with a zero
1,000,000 ## 1,0,0
# another hour, half of the day or unit
15:30 ## 5:30 p.m.
3:30 a.m. ## 15:30
45\text{ seconds} ## 45 m
1:30 ## 1.5 days
2\text{ hours} ## 2\text{ hours }30\text{ minutes}
12:00 a.m. ## 12:00 p.m.
7\text{ weeks} ## 7\text{ days}
# another sign
x≥5 ## x>5
½ ## ⅓
√2 ## √3
π ## 3
∞ ## −∞
∅ ## 0
“5” ## “6”
x₁ ## x²
# another unit, or words that change the number
5 ## 5x
5 ## 5m+1
5\text{ cm} ## 5 s
5\text{ apples} ## 5 red oranges
5 ## 5 of 6
5 ## 5 more than 3
5 ## 5 in 6
5 ## 5 cm or 6 cm
9.8\,\frac{\mathrm{m}}{\mathrm{s}^2} ## 9.8\,\frac{\mathrm{m}}{\mathrm{s}}
60 \frac{\text{miles}}{\text{hour}} ## 60 \frac{\text{km}}{\text{hour}}
2.5\ \Omega ## 2.5\ \mathrm{k\Omega}
2.5\ \mu\text{m} ## 2.5\ \text{m}
5\ \text{m} ## 5\ \text{m/s}
5 ## 5 - 1 apples
10\text{ years} ## 10\text{ months}
12 \text{ inches} ## 12 \text{ feet}
7 ## 7 less than x
7 ## 7 times 2
7 ## 7 squared
7 ## 7 dozen
7 ## 7 hundred
2 ## two and a half
0.5 ## 2 and a half
2,\frac12 ## two and a half
2,\frac12 ## 2 and a half
3.5 ## two and three halves
1 ## half and a half
2.5 ## two and a half wrong
2.5 ## two and a half or three
5 ## twenty-five dollars
25 ## twenty-five or thirty
25 ## twenty-five wrong
25 ## twenty-five not
25 ## twenty-five thirds
25 ## twenty - five dollars less
20 ## twenty minus five
42\text{ apples} ## forty-two pears
5 ## 5 (six)
6 ## 5 (six)
5 ## five (6)
5 ## 5 (not five)
5 ## 5 (five or six)
5 ## five and counting
5 ## five and six apples
25 ## 25 (twenty-six)
"""
