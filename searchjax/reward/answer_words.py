"""Word lists of the answer matcher.  PURE.

Each list is a kind of word, not a case: what may stand beside a name without making it another
name, what makes it another one, and what says that no answer was given.

Section  SPEC 2 (r_base).
Source   own.
"""

import re

_set = lambda text: frozenset(text.split())

FUNCTION = _set("""
a an the this that these those it its he she they his her their them him i we you my our your one
ones is are was were be been being am isnt arent wasnt werent has have had do does did will would
can could shall should may might must cannot wont of in on at by for from to with as into onto
about after before during since until between among over under than through via per within without
near against toward towards across around behind beyond off out up down and or nor but so yet if
because while although though whereas when where which who whom whose what why how not no never
neither none also too then there here now just only even still already again both all any each
every some such very more most less least many much few several other another same own called named
known titled entitled said says say stated states according reported shows show found appears
appear seems seem became become becomes remains remained received receives won wins win served
serves directed directs wrote written writes published released created founded established built
designed discovered invented starred stars played plays performed performs composed produced
recorded born died lived located situated based lies lie sits serving held holds hosted hosts
awarded made makes make used uses use using first second third last final currently presently
officially formerly originally primarily mainly mostly approximately roughly actually indeed
finally overall therefore thus hence however moreover well yes ok okay sure answer correct right
result likely probably possibly perhaps maybe believe think guess assume based respectively since
etc ie eg today year years time date day month es est sont son ist sind war era fue était été
é è sono
""")

# Small words of other languages' names: "Andorra la Vella", "Abreu e Lima".
PARTICLES = _set("""
de del della di da do dos das du des la las le les lo los el al e y i et en und von van der den die
das sur
""")
COPULAS = _set("is are was were es est sont son ist sind war era fue è é")

# What a place may be called before "of": "the city of Paris". Other things of Paris are not Paris.
PLACE_KINDS = _set("city town village country nation state province region county island continent "
                   "kingdom commonwealth name")
# What makes one place's name another's: "Guatemala City" answers no question for Guatemala.
PLACE_ENDINGS = _set("city state capital town place island islands county province region district")

# What may follow a name and leave it the same thing.
KIND_NOUNS = _set("""
team club film movie book novel song album series show episode play musical opera poem magazine
newspaper website company corporation firm band group orchestra currency language rocket spacecraft
telescope aircraft airline project programme program award prize tournament party organization
organisation brand game app software family dynasty tribe people person man woman himself herself
itself themselves alone
""")

# What may come before a person's name.
TITLES = _set("""
mr mrs ms miss dr prof professor sir dame lord lady king queen prince princess emperor empress pope
president chancellor senator governor mayor minister secretary judge justice captain general
colonel admiral major bishop archbishop cardinal reverend father coach author writer poet novelist
actor actress singer musician composer director producer painter artist scientist physicist chemist
mathematician engineer inventor explorer player footballer cricketer boxer swimmer driver
philosopher historian economist journalist politician founder ceo chairman
""")

# What may come before any name: "the currency Yen", "the winner Ada Lovelace".
LABELS = _set("currency language name winner recipient answer")

# What makes a name another name, wherever it stands.
DISTINGUISHING = _set("""
new old north south east west northern southern eastern western central upper lower inner outer
great greater little lesser saint non anti pre post vice deputy assistant acting former ex junior
senior jr sr ii iii iv vi vii viii ix xi xii xiii xiv xv xvi
""")

CALENDAR = re.compile(
    r"(?:jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec"
    r"|mon|tues?|wed|thurs?|fri|sat|sun)[a-z]*$")

NEGATIONS = _set("""
not no never neither nor without isnt arent wasnt werent doesnt didnt dont cannot cant couldnt wont
wouldnt hasnt havent hadnt unlike except excluding false incorrect wrong doubt doubtful doubted
unlikely deny denied denies refuted disproved hardly mistakenly wrongly erroneously incorrectly
falsely
""")

ABSTENTION = re.compile(r"""
  \b(?:i|we)\s+(?:(?:was|were|am|are)\s+(?:un|not\s+)able
      |(?:do|did|could|can|have|had|would|will)\s*n[o']?t|cannot
      |can'?t|couldn'?t|don'?t|didn'?t|haven'?t|(?:wasn'?t|weren'?t)\s+able)\b
      (?!\s+(?:only|just|think\s+(?:it|so)))
  |\b(?:i'?m|i\s+am|we'?re|we\s+are)\s+(?:sorry|unable|not\s+able)\b
  |\b(?:so|and|thus|therefore)\s+(?:can'?t|cannot)\s+(?:say|tell|answer|confirm)
  |\bno\s+(?:\w+\s+){0,2}(?:information|evidence|answer|data|results?|sources?|mention)\b
  |\b(?:not\s+enough|insufficient)\s+(?:information|evidence|data|context)
  |\b(?:is|was|are|remains)\s+(?:unknown|unclear|unspecified|undetermined
      |not\s+(?:known|clear|available|publicly|possible\s+to|specified|stated|mentioned|found
          |provided))
  |\b(?:cannot|can'?t|could\s*n[o']?t|can\s+not)\s+be\s+
      (?:determined|found|verified|confirmed|established|answered)
  |\b(?:unable|failed|impossible)\s+to\s+
      (?:find|determine|verify|confirm|answer|locate|identify|establish|say)
  |^\W*(?:unknown|unclear|n/?a|none|null|tbd|to\s+be\s+determined|nothing\s+found|abstain|sorry
      |(?:data|information|answer)\s+(?:not\s+(?:found|available|known)|unavailable))\W*$
  |\bno\s+way\s+to\s+(?:tell|know|say)\b|\b(?:i|we)\s+could\s+only\s+find\b
  |\b(?:it'?s|that'?s)\s+(?:not\s+(?:clear|known)|un(?:clear|known))\b
  |^\W*not\s+(?:found|available|sure|certain|known|clear|stated|mentioned|specified|given)\b
  |\bno\s+idea\b|\b(?:found|find|know)\s+nothing\b
  |\bneed\s+(?:more|further|additional)\s+(?:information|context|details?)\b
  |\b(?:could|can|would)\s+you\s+(?:please\s+)?(?:clarify|specify|provide|tell|share|give)\b
  |\b(?:sources?|results?|pages?|documents?|articles?|search(?:es)?|context|texts?|snippets?)\b
      [^.;,]{0,30}\b(?:do(?:es)?|did)\s*(?:n[o']t|\snot)\s+(?:mention|say|state|specify|contain
      |provide|name|include|give|reveal|show|list|identify|indicate|answer|confirm)
  |\bnone\s+of\s+the\s+(?:\w+\s+)?
      (?:sources|results|pages|documents|articles|searches|snippets)\b
  |不知道|无法|無法|不确定|不清楚|没有找到|沒有找到|未找到|わかりません|分かりません|모르겠
  |\bnicht\s+bekannt\b|\bunbekannt\b|\bno\s+se\s+sabe\b
  |\bon\s+ne\s+sait\s+pas\b|\bnon\s+si\s+sa\b
  |\bno\s+lo\s+s[eé]\b|\bje\s+ne\s+sais\s+pas\b|\bich\s+wei(?:ß|ss)\s+(?:es\s+)?nicht\b
""", re.I | re.X)

# Doubt that withdraws nothing: "I am not certain, but".
DOUBT = re.compile(r"""
  \b(?:i'?m|i\s+am|we\s+are|we'?re)\s+not\s+(?:\w+\s+)?(?:sure|certain|confident|positive)\b
""", re.I | re.X)
CLAIM = re.compile(r"""
  \b(?:believe|think|guess|suspect|assume|likely|probably|perhaps|possibly|maybe|appears?|seems?
      |suggests?|answer|would\s+say|best)\b
""", re.I | re.X)
CONTRAST = re.compile(
    r"[,;]?\s+(?:but|however|although|though|yet|nevertheless|still)\b,?|;", re.I)
# What comes after takes back what came before: "Some say Paris, but it is Lyon".
TURN = re.compile(r"""
  \?\s*(?:no|nope|wrong)\b[,.:;]?\s+ | \b(?:wait|correction|scratch\s+that)\b[,:.]\s+ |
  \b(?:but|however|although|actually|in\s+(?:fact|reality)|now)\b[,:]?\s+
  (?:actually\s+|in\s+fact\s+|really\s+)?
  (?:(?:it|that|this|he|she|they)(?:'s|\s+(?:is|was|were|are|became))
    |the\s+(?:correct\s+|right\s+|real\s+|actual\s+|true\s+)?(?:answer|one)\s+(?:is|was))\s+
  (?!(?:not|never|also|un\w+|hard|only|possible|likely|probably|perhaps|possibly|debated|disputed
     |true|difficult|worth|said|known|believed|often|sometimes|still|in|at|on|by|from|to|for
     |with)\b)
""", re.I | re.X)
# What is said against an answer, and taken back by what stands beside it.
CONCESSION = re.compile(
    r"\b(?:although|even\s+though|though|while|whereas|despite|in\s+spite\s+of|contrary\s+to)\b"
    r"[^,.;]*(?:[,.;]|$)", re.I)
# Directly before a name they ask about it or belong to it: "Will John Smith".
MODALS = _set("will would can could shall should may might must")
# What is named so bears another name now, unless the question is about the past.
FORMER = re.compile(
    r"\b(?:formerly|previously|originally|once|earlier|historically) "
    r"(?:called|named|titled|known as|referred to as)$")
PAST_QUESTION = re.compile(
    r"\b(?:former(?:ly)?|old|older|original(?:ly)?|previous(?:ly)?|earlier|once|historical(?:ly)?"
    r"|was|were|did|had|used to)\b", re.I)
HEARSAY = re.compile(
    r"(?:commonly|often|widely|popularly|sometimes) (?:thought|believed|assumed|said|claimed)"
    r"|(?:many|some|people|others)(?: \w+)? (?:say|think|believe|claim|assume|suggest)\b")
ATTRIBUTION = re.compile(r"\baccording\s+to\b[^,.;:\n]*[,;:]", re.I)
# Not the place itself: "near Paris".
VICINITY = _set("near nearby outside beyond towards toward opposite beside")
VICINITY_PHRASE = re.compile(r"\b(?:close|next|adjacent|similar|prior|compared) to$")
# What says after a name that it is not the answer: "Paris was ruled out".
DISMISSAL = re.compile(
    r"(?:(?:was|is|were|are|has|have|had|can|could|been|be|already|also|therefore) )*"
    r"(?:ruled out|excluded|eliminated|rejected|dismissed|discarded|disqualified"
    r"|unlikely|impossible"
    r"|(?:a )?(?:common )?(?:mistake|misconception|error|myth|runner|confusion))\b")
# After a name, these begin more of it: "Newcastle under Lyme", "Frankfurt am Main".
SEQUELS = _set(
    "part volume vol chapter episode season book ii iii iv v vi vii viii 2 3 4 5 6 7 8 9")
ORIGINS = _set("come comes came born hails originates originated")
DEFEATS = _set("lost lose losing loser beaten runner")
NAME_LINKS = _set("under upon an am ob im sous unter bei sul")
SECOND_THOUGHT = re.compile(r"""
  \b(?:could|might|may)\s+be\b.*\b(?:could|might|may)\s+be\b |
  \b(?:(?:could|might|may)\s+(?:also|instead|equally)\s+be|or\s+(?:possibly|perhaps|maybe)
      |alternatively|another\s+(?:possibility|candidate|option)|either\s+way)\b
""", re.I | re.X)
MARKER = re.compile(r"""
  (?:\b(?:final|short|correct|my)\s+answer
    |(?<!wrong\s)(?<!incorrect\s)(?<!false\s)\banswer)\s*(?:(?:is|was)\b(?!\s+not\b)|:|=)+\s*
  |\\boxed\s*\{|<answer>
""", re.I | re.X)

YES = _set("yes yeah yep true correct indeed affirmative certainly definitely "
           "是 对 是的 对的 はい sí oui ja")
NO = _set("no nope false incorrect negative 否 不 不是 不对 没有 いいえ non nein")
PERSON_QUESTION = re.compile(r"""
  \b(?:who|whom|whose)\b
  |\b(?:which|what|name)\b[^?]{0,40}\b(?:person|man|woman|actor|actress|singer|author|writer
      |president|king|queen|player|director|composer|scientist|artist|mother|father|wife|husband
      |son|daughter|laureate|professor|founder|inventor|poet|musician|politician)\b
  |谁|誰|哪位
""", re.I | re.X)
QUANTITY_QUESTION = re.compile(r"""
  \bhow\s+(?:many|much|long|far|old|tall|high|deep|wide|big|large|heavy|fast|often)\b
  |\bwhat\s+(?:is|was|were|are)\s+the\s+(?:number|total|percentage|population|height|length
      |distance|area|difference|sum|age|temperature|score)\b
  |\b(?:what|which)\s+(?:number|percentage|year|age|place|rank|position)\b
  |\bnumber\s+of\b|多少|几
""", re.I | re.X)
YES_NO_QUESTION = re.compile(
    r"^\W*(?:is|are|was|were|will|would|did|does|do|has|have|had|can|could|should)\b", re.I)
# Words of a question whose loss changes it: "born before" is not "born after".
RELATIONS = _set("""
before after more less fewer most least first last second same different over under between since
until both all every only never always now still already
""")
SHORT_NO = re.compile(r"""
  ^\W*(?:(?:of\s+course|certainly|definitely|probably|absolutely|likely|surely)\s+)?
  not(?:\s+(?:really|at\s+all|true|so))?\W*$
  |^\W*(?:it|they|he|she|we|i|there)\s+\w+(?:n't|\s+not)\W*$
  |^\W*i\s+(?:would\s+say|think|believe|guess)\s+(?:the\s+answer\s+is\s+)?no\W*$
""", re.I | re.X)
NEGATIVE_CLAIM = re.compile(r"""
  \b(?:not|never|none|no|neither|nobody|nothing|cannot|can'?t
      |(?:wo|is|was|are|were|did|does|do|has|have)n'?t)\b
  |\bpremise\s+is\s+(?:false|wrong|incorrect)|\bfalse\s+premise|不是|没有|并非
""", re.I | re.X)
NOTE = re.compile(r"""
  accept|fine|okay|\bok\b|also|either|such\s+as|or\b|aka|a\.k\.a|known\s+as|formerly|synonym
""", re.I | re.X)
# What may end a run of CJK text after a name and leaves it the same thing.
CJK_ENDINGS = _set("""
公司 有限公司 集团 株式会社 さん 氏 です だ である でした 입니다 이다 예요 이에요 은 는 이 가 에서
""")
CJK_CONJUNCTIONS = _set("和 与 與 及 或 跟")
CJK_DENIALS = re.compile(r"不|非|没|沒|無|无|未|ない|ません|아니")
HONORIFICS = re.compile(r"(?:教授|先生|女士|博士|老师|院士|氏|さん|様|님)$")

# A name after a comma that says where the first one lies.
PLACES = frozenset(name.strip() for name in """
afghanistan, albania, algeria, andorra, angola, argentina, armenia, australia, austria, azerbaijan,
bahamas, bahrain, bangladesh, barbados, belarus, belgium, belize, benin, bhutan, bolivia, bosnia
and herzegovina, botswana, brazil, brunei, bulgaria, burkina faso, burundi, cambodia, cameroon,
canada, chad, chile, china, colombia, costa rica, croatia, cuba, cyprus, czech republic, czechia,
denmark, djibouti, dominican republic, ecuador, egypt, el salvador, england, eritrea, estonia,
ethiopia, fiji, finland, france, gabon, gambia, georgia, germany, ghana, great britain, greece,
guatemala, guinea, guyana, haiti, honduras, hungary, iceland, india, indonesia, iran, iraq,
ireland, israel, italy, jamaica, japan, jordan, kazakhstan, kenya, kuwait, kyrgyzstan, laos,
latvia, lebanon, lesotho, liberia, libya, liechtenstein, lithuania, luxembourg, madagascar, malawi,
malaysia, maldives, mali, malta, mauritania, mauritius, mexico, moldova, monaco, mongolia,
montenegro, morocco, mozambique, myanmar, namibia, nepal, netherlands, new zealand, nicaragua,
niger, nigeria, north korea, north macedonia, northern ireland, norway, oman, pakistan, panama,
papua new guinea, paraguay, peru, philippines, poland, portugal, qatar, romania, russia, rwanda,
saudi arabia, scotland, senegal, serbia, sierra leone, singapore, slovakia, slovenia, somalia,
south africa, south korea, spain, sri lanka, sudan, suriname, sweden, switzerland, syria, taiwan,
tajikistan, tanzania, thailand, togo, tunisia, turkey, turkiye, turkmenistan, uganda, ukraine,
united arab emirates, uae, united kingdom, uk, united states, united states of america, usa, us,
uruguay, uzbekistan, venezuela, vietnam, wales, yemen, zambia, zimbabwe, alabama, alaska, arizona,
arkansas, california, colorado, connecticut, delaware, florida, hawaii, idaho, illinois, indiana,
iowa, kansas, kentucky, louisiana, maine, maryland, massachusetts, michigan, minnesota,
mississippi, missouri, montana, nebraska, nevada, new hampshire, new jersey, new mexico, new york,
north carolina, north dakota, ohio, oklahoma, oregon, pennsylvania, rhode island, south carolina,
south dakota, tennessee, texas, utah, vermont, virginia, washington, west virginia, wisconsin,
wyoming, ontario, quebec, british columbia, alberta, manitoba, saskatchewan, nova scotia, new
brunswick, new south wales, victoria, queensland
""".replace("\n", " ").split(","))
