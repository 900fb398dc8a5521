"""Pairs of answers with letters behind numbers, digits of other scripts, and commands that only dress an answer.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

SAME = r"""
# a symbol behind a number is a unit where the other side or an upright font says so, or where it plainly is one
2mn ## 2nm
2\pi hr ## 2\pi rh
mgh ## hgm
2cm ## 2mc
2 c m ## 2cm
kgm ## mgk
2rs ## 2sr
3ft ## 3tf
\frac12 kx^2 ## \frac{1}{2}x^2k
2hr ## 2rh
2lb ## 2bl
5 cm ## 5
5cm ## 5
12 m/s ## 12
30 kg ## 30
10 min ## 10
7 hours ## 7
\$5 ## 5
20 km/h ## 20
5 cm ## 5\text{ cm}
5cm ## 5\text{ cm}
5 nm ## 5\text{ nm}
5nm ## 5\,\mathrm{nm}
5 m ## 5\text{ m}
5 m ## 5
2 cm ## 20 mm
5 cm ## 0.05 m
3 ft ## 36 in
4\pi cm^2 ## 4\pi
15 cm^2 ## 15
15 cm^2 ## 15\text{ cm}^2
5 ft ## 5
5 lbs ## 5
5 Hz ## 5
5 kJ ## 5
3 mol ## 3
6 hrs ## 6
x=5 cm ## 5
x = 5 ## x = 5 cm
5\text{ nm} ## 5
2\,\mathrm{rs} ## 2
ma ## am
mgh ## m g h
rst ## str
2ma ## 2am
3pm ## 3mp
3 pm ## 3\text{ p.m.}
m^2n ## nm^2
2m^2s ## 2sm^2
2km^2 ## 2m^2k
5 mi ## 5\text{ miles}
7 days ## 7
20 students ## 20
60 mph ## 60
3 yd ## 3
12 oz ## 12
100 mL ## 100
100 ml ## 100\text{ mL}
9.8 m/s^2 ## 9.8
5 N ## 5
5 kg ## 5000 g
n^2m ## mn^2
2mn+1 ## 1+2nm
\pi r^2 h ## \pi hr^2
2\pi mg ## 2\pi gm
3dm ## 3md
3in ## 3ni
4ev ## 4ve
2kw ## 2wk
6pa ## 6ap
8th ## 8
3hz ## 3zh
2lbs ## 2sbl
5 secs ## 5
10 mins ## 10
\frac{3}{4} cup ## 3/4
5 km ## 5
2.5 L ## 2.5
5\text{ cm} ## 5 cm
\frac{mn}{2} ## \frac{nm}{2}
\sqrt{2gh} ## \sqrt{2hg}
ms^2 ## s^2m
5\sqrt{2} cm ## 5\sqrt{2}
# digits of every script are digits; space, size, colour and labels are no numbers
5٢ ## 52
٥٢ ## 52
۵۲ ## 52
५२ ## 52
৫২ ## 52
๕๒ ## 52
５２ ## 52
𝟓𝟐 ## 52
٣٫٥ ## 3.5
١٬٢٣٤ ## 1234
٣/٤ ## 3/4
\hspace{1cm}5 ## 5
5\hspace{1cm} ## 5
\hspace*{2em} 5 ## 5
\phantom{1}5 ## 5
5\phantom{0} ## 5
\color{red}{5} ## 5
\color[rgb]{1,0,0} 5 ## 5
\textcolor{blue}{\frac12} ## \frac12
\colorbox{yellow}{5} ## 5
5\tag{1} ## 5
5 \label{eq:1} ## 5
\kern1em 5 ## 5
5\mkern3mu ## 5
\hskip 2pt 5 ## 5
\tiny 5 ## 5
\scalebox{2}{5} ## 5
\raisebox{2pt}{5} ## 5
\vspace{3mm} x ## x
\fontsize{10}{12}\selectfont 5 ## 5
(1,\ 2) ## (1,\hspace{2mm}2)
\mathbf{5} ## 5
４２ ## 42
# letters, units, times and digits near these
12 ## 12\text{ 元}
12\text{ 元} ## 12
5 ## 5个
5 ## 5 人
12 ## 12 Stück
12 ## 12 euros
5 ## 5 pommes
3 ## 3 km²
25 ## 25 cm²
25 ## 25\,cm^2
25 ## 25\text{ square centimeters}
25 ## 25 sq. cm
100 ## 100°
100 ## 100 degrees
37 ## 37°C
5 ## 5 m²
60 ## 60 km/h
60\text{ km/h} ## 60 kilometers per hour
60\text{ km/h} ## 60 kph
20 ## \$20
20 ## 20 dollars
20 ## USD 20
20 ## 20 USD
\$20.50 ## 20.5
20\% ## 20 percent
3 ## 3 units
3 ## 3 square units
12 ## 12 ways
12 ## 12 different ways
12 ## n = 12
6 ## 6\text{th}
2 hours ## 120 minutes
1/2 hour ## 30 minutes
0.5 km ## 500 m
4\pi ## 4\pi\,\text{cm}^2
4\pi ## 4\pi cm^2
4\pi ## 4\pi square units
5\sqrt2 ## 5\sqrt2 \text{ units}
10 ## 10 mph
9.8\text{ m/s}^2 ## 9.8 m/s²
6.02\times10^{23} ## 6.02 × 10²³
3\times10^8\text{ m/s} ## 3 × 10^8 m/s
\pi r^2 ## \pi r^2\text{ cm}^2
2gh ## 2hg
v^2/(2g) ## \frac{v^2}{2g}
\sqrt{2gh} ## \sqrt{2hg}
F=ma ## F=am
PV=nRT ## nRT=VP
mc^2 ## c^2m
mgh ## hmg
kx ## xk
2lw+2lh+2wh ## 2(lw+lh+wh)
\frac12 bh ## \frac{hb}{2}
2\pi rl ## 2\pi lr
\pi dh ## \pi hd
6ms ## 6sm
IR ## RI
qvB ## Bqv
-2mn ## -2nm
ab\text{ cm} ## ab
2,5 kg ## 2.5 kg
3:45 PM ## 3:45pm
8 am ## 8:00 a.m.
18:00 ## 6 pm
6 pm ## 18:00
14.5 ## 14,5
٤٢ ## 42
４２ ## 42
四 ## 四
１/２ ## 0.5
x＝５ ## 5
3．5 ## 3.5
３．５ ## 3.5
１，０００ ## 1000
−５ ## -5
5％ ## 5\%
5 ٪ ## 5%
# primes behind names, degrees and feet
x^{\prime}+\frac{r}{V}x=0 ## x'+\frac{r}{V}x=0
f^{\prime}(x) ## f'(x)
f^\prime(x) ## f'(x)
f^{\prime\prime}(x) ## f''(x)
10^{\circ} 30^{\prime} ## 10.5^\circ
10^\circ 30' ## 10.5
179^{\circ} 59^{\prime} 56^{\prime \prime} ## 179^\circ 59' 56''
5^{\prime}4^{\prime\prime} ## 5 feet 4 inches
A^{\prime} ## A'
# more neighbours
3\text{ nm} ## 3 nm
3 nm ## 3\,\text{nm}
2\text{ ms} ## 2 ms
5\text{ kPa} ## 5 kPa
5 ## 5 kPa
10\text{ N} ## 10 N
10\text{ N}\cdot\text{m} ## 10 N m
50 ## 50 Hz
6 ## 6 hours
6\text{ hours} ## 6
6 hours ## 6 h
6 ## 6\,\mathrm{h}
15\,\Omega ## 15
100 ## 100 J
2.5 ## 2.5 mol
3 ## 3 mol/L
9.8 ## 9.8 m/s^2
120 ## 120 km/hr
4 ## 4 quarts
1/2 ## 1/2 cup
5 ## 5 points
5 ## 5 (units)
60^\circ ## 60°
60^\circ ## 60 deg
\frac{\pi}{3}\text{ rad} ## \frac{\pi}{3}
45 ## 45\text{ mph}
25\% ## 25 pct
100 ## 100\text{ dollars}
xy\text{ m} ## xy
0.5 ## 50\%
2\sqrt{2}\text{ ft} ## 2\sqrt2
2\sqrt{2} ft ## 2\sqrt2
3+\pi cm ## 3+\pi
"""

DIFFERENT = r"""
# a symbol behind a number is a unit where the other side or an upright font says so, or where it plainly is one
2nm ## 2
2rs ## 2
x^2 ft ## x^2
x^2 cm ## x^2
2ms ## 2
3pc ## 3
2au ## 2
3mg ## 3
4\pi hr ## 4\pi
2x cm ## 2x
2ab ## 2
5in ## 5
2cd ## 2
5 m ## 5\text{ cm}
5 nm ## 5\text{ cm}
15 cm^2 ## 15\text{ cm}
5 cm ## 5 m
5 cm ## 5 km
cat ## act
listen ## silent
no ## on
2mn+1 ## 3
3hz ## 3
2kmh ## 2
5x kg ## 5x
(x+1) ft ## x+1
# digits of every script are digits; space, size, colour and labels are no numbers
5٢ ## 5
٣/٤ ## 3/5
\hspace{1cm} ## 1
\hspace{1cm} ## \hspace{1cm}1
5\hspace{1cm} ## 51
\phantom{1}5 ## 15
5\phantom{0} ## 50
\hskip 2pt ## 2
\kern 5pt ## 5
\rule{5cm}{1pt} ## 5
\scalebox{2}{5} ## 10
\raisebox{2pt}{5} ## 2
\phantom{5} ## 5
\phantom{\frac12} ## \frac12
\cancel{5} ## 5
# letters, units, times and digits near these
5\text{ m} ## 5 m²
2 hours ## 2 minutes
0.5 km ## 0.5 m
3\times10^8 ## 3\times10^8 n
5 ## 5x
5 ## 5a
5 ## 5ab
5 ## 5 ab
7 ## 7pq
7 ## 7hk
7 ## 7 hk
x ## x cm
3x ## 3x kg
a^2 ## a^2 cm
\pi r^2 ## \pi r^2 cm
2 ## 2mol k
4 ## 4gh
4 ## 4 gh
4 ## 4ms
4 ## 4 ms
4 ## 4 pc
4 ## 4kb
4 ## 4 dl
mgh ## mg
mgh ## mhv
2mn ## 2m
2mn ## 2n
2mn ## m^2n
2mn ## -2mn
8 am ## 8 pm
6 pm ## 16:00
٤٢ ## 24
5① ## 5
# primes behind names, degrees and feet
f^{\prime\prime}(x) ## f'(x)
f^{\prime}(x) ## f(x)
179^{\circ} 59^{\prime} 56^{\prime \prime} ## 179^\circ 59'
A^{\prime} ## A
# more neighbours
3\text{ nm} ## 3\text{ mm}
9.8 m/s^2 ## 9.8 m/s
\$100 ## 100 euros
2a ## 2
3p ## 3
9t ## 9
7m ## 7
7s ## 7
12xy ## 12
8rt ## 8
10gh ## 10
\frac12gt^2 ## \frac12
6cd ## 6
6cm^2x ## 6
15ab ## 15
4k ## 4
3i ## 3
2n ## 2
5 l m ## 5
3 n m ## 3
1km ## 2km
2\sqrt{2}ft ## 2\sqrt{3}ft
2x ft ## 2x
n ft ## n
2^n cm ## 2^n
\sqrt{x} cm ## \sqrt{x}
"""
